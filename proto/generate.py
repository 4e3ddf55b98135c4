"""Regenerate the code beside the .proto files, or check that it is up to date.

    python proto/generate.py            write
    python proto/generate.py --check    exit 1 if a committed file differs from a fresh one

The compiler is the exactly pinned grpcio-tools of the `dev` extra: another version writes other
bytes, so it is refused. The gRPC plugin writes no stubs for type checkers; they are made here from
the descriptors, so that servicers and stubs are checked by mypy like everything else.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

PINNED_COMPILER = "1.85.1"
SOURCE_ROOT = Path(__file__).resolve().parent
PACKAGES = ("disagg/v1", "disagg/facade")


def compile_into(out: Path) -> None:
    """Write all generated files below `out`; raises RuntimeError if protoc fails."""
    protos = sorted(
        path.relative_to(SOURCE_ROOT)
        for package in PACKAGES
        for path in SOURCE_ROOT.glob(f"{package}/*.proto")
    )
    descriptors = out / "descriptors.bin"
    status = protoc.main(
        [
            "protoc",
            f"-I{SOURCE_ROOT}",
            f"-I{files('grpc_tools') / '_proto'}",
            f"--python_out={out}",
            f"--pyi_out={out}",
            f"--grpc_python_out={out}",
            f"--descriptor_set_out={descriptors}",
            *map(str, protos),
        ]
    )
    if status != 0:
        raise RuntimeError(f"protoc exited with {status}; its messages are above")
    parsed = descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes())
    descriptors.unlink()
    owner = {f".{f.package}.{m.name}": Path(f.name) for f in parsed.file for m in f.message_type}
    for file in parsed.file:
        path = (out / file.name).with_name(f"{Path(file.name).stem}_pb2_grpc.pyi")
        path.write_text(service_stubs(file, owner), encoding="utf-8")


def service_stubs(file: descriptor_pb2.FileDescriptorProto, owner: dict[str, Path]) -> str:
    """The .pyi text of one `_pb2_grpc` module.

    A stub over a `grpc.aio.Channel` has other types than one over a `grpc.Channel`: the overloads
    of `__new__` tell them apart, `<Service>AsyncStub` exists for type checkers only.
    """

    def message(full_name: str) -> str:
        return f"{owner[full_name].stem}_pb2.{full_name.rsplit('.', 1)[1]}"

    def call(method: descriptor_pb2.MethodDescriptorProto) -> str:
        kind = ("Stream" if method.client_streaming else "Unary") + (
            "Stream" if method.server_streaming else "Unary"
        )
        return f"{kind}MultiCallable[{message(method.input_type)}, {message(method.output_type)}]"

    modules = sorted(
        {
            owner[name]
            for service in file.service
            for method in service.method
            for name in (method.input_type, method.output_type)
        }
    )
    lines = ["import abc"] if file.service else []
    if file.service:
        lines += ["from collections.abc import AsyncIterator", "from typing import overload", ""]
        lines += ["import grpc", "import grpc.aio", ""]
        lines += [f"from {'.'.join(path.parent.parts)} import {path.stem}_pb2" for path in modules]
    for service in file.service:
        stub, async_stub = f"{service.name}Stub", f"{service.name}AsyncStub"
        lines += [
            "",
            f"class {stub}:",
            "    @overload",
            f"    def __new__(cls, channel: grpc.aio.Channel) -> {async_stub}: ...",
            "    @overload",
            f"    def __new__(cls, channel: grpc.Channel) -> {stub}: ...",
        ]
        lines += [f"    {m.name}: grpc.{call(m)}" for m in service.method]
        lines += ["", f"class {async_stub}({stub}):"]
        lines += [
            f"    {m.name}: grpc.aio.{call(m)}  # type: ignore[assignment]" for m in service.method
        ]
        lines += ["", f"class {service.name}Servicer(metaclass=abc.ABCMeta):"]
        for m in service.method:
            request, response = message(m.input_type), message(m.output_type)
            if m.client_streaming:
                request = f"AsyncIterator[{request}]"
            returns = f"AsyncIterator[{response}]" if m.server_streaming else response
            # A streaming handler is an async generator: calling it returns the iterator at once.
            define = "def" if m.server_streaming else "async def"
            lines += [
                f"    {define} {m.name}(",
                "        self,",
                f"        request: {request},",
                f"        context: grpc.aio.ServicerContext[{message(m.input_type)}, {response}],",
                f"    ) -> {returns}: ...",
            ]
        lines += [
            "",
            f"def add_{service.name}Servicer_to_server(",
            f"    servicer: {service.name}Servicer, server: grpc.Server | grpc.aio.Server",
            ") -> None: ...",
        ]
    return "\n".join(lines) + "\n" if lines else ""


def generated(root: Path) -> dict[str, bytes]:
    """Relative path to content of every generated file below `root`."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for package in PACKAGES
        for path in sorted((root / package).glob("*_pb2*.py*"))
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args(arguments)
    if version("grpcio-tools") != PINNED_COMPILER:
        print(f"grpcio-tools {version('grpcio-tools')} found, {PINNED_COMPILER} needed")
        return 3
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        compile_into(out)
        fresh, committed = generated(out), generated(SOURCE_ROOT)
        different = sorted(
            name for name in fresh | committed if fresh.get(name) != committed.get(name)
        )
        if options.check:
            for name in different:
                print(f"differs from its source: proto/{name}; run python proto/generate.py")
            return 1 if different else 0
        for name in different:
            if name in fresh:
                (SOURCE_ROOT / name).write_bytes(fresh[name])
            else:
                (SOURCE_ROOT / name).unlink()
            print(f"wrote proto/{name}" if name in fresh else f"removed proto/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
