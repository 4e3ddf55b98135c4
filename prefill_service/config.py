"""Settings of a prefill process; `runtime.settings` loads them."""

from pydantic import field_validator

from prefill_service.boundary import BoundaryPolicy
from runtime.settings import Settings, setting
from serving.events import EventsSettings
from serving.settings import EngineProcessSettings, EngineSection, GroupSettings, StoreSection


class PrefillGroup(GroupSettings):
    """The ranks that run in lockstep."""

    name: str = setting("prefill-0", help="name of the group, unique in a cluster", flag="--group")


class PrefillEngine(EngineSection):
    """One engine; the rest follows from the model."""

    max_num_seqs: int = setting(16, help="prompts that hold memory at once", ge=1)
    max_num_batched_tokens: int = setting(512, help="rows of one step, and of a chunk", ge=1)
    max_waiting: int = setting(1024, help="prompts that may wait in the engine", ge=1)


class PrefillStore(StoreSection):
    """The shared KV store."""

    claim_ttl_s: float = setting(60.0, help="seconds a hand-off waits for its reader", gt=0)


class PublishSettings(Settings):
    """How KV gets into the store."""

    boundary_states: str = setting(
        "every:8",
        help="block ends whose state is stored for later prompts: every, every:K (and the last), "
        "last, none; it is rebuilt where that is cheaper than going back to a stored one",
    )
    writers: int = setting(2, help="threads that write blocks", ge=1)
    readers: int = setting(2, help="threads that look up, load and commit", ge=1)
    max_bytes_in_flight: int = setting(
        512 << 20, help="host bytes of KV of all prompts between engine and store", gt=0
    )
    max_waiting: int = setting(256, help="prompts that may wait for those bytes", ge=0)

    @field_validator("boundary_states")
    @classmethod
    def _is_policy(cls, text: str) -> str:
        BoundaryPolicy.parse(text)
        return text


class PrefillSettings(EngineProcessSettings):
    """Everything a prefill process can be told."""

    group: PrefillGroup = PrefillGroup()
    engine: PrefillEngine = PrefillEngine()
    store: PrefillStore
    publish: PublishSettings = PublishSettings()
    events: EventsSettings = EventsSettings()
