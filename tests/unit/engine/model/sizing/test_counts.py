"""Numbers and bytes by format."""

from engine.model.sizing.counts import Counter, Part


def test_formats_of_a_quantised_model():
    counter = Counter.of({"quantization_config": {"weight_block_size": [128, 128]}}, {})
    counter.matrix("a", 128 * 256)
    counter.floats("b", 10)
    counter.singles("b", 3)
    assert counter.done() == {
        "a": Part(parameters=32_768, num_bytes=32_768 + 2),
        "b": Part(parameters=13, num_bytes=20 + 12),
    }
    assert counter.expert_bytes({"expert_dtype": "fp4"}, 64) == (32, 34)
    assert counter.expert_bytes({}, 128 * 128) == (16_384, 16_385)


def test_formats_without_quantisation():
    counter = Counter.of({}, {"torch_dtype": "float32"})
    counter.matrix("a", 10)
    assert counter.done() == {"a": Part(parameters=10, num_bytes=40)}
    assert counter.expert_bytes({}, 10) == (40, 40)
    assert Counter.of({}, {}).float_bytes == 2
