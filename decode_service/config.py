"""Settings of a decode process; `runtime.settings` loads them."""

from runtime.settings import Settings, setting
from serving.events import EventsSettings
from serving.settings import EngineProcessSettings, EngineSection, GroupSettings, StoreSection


class DecodeGroup(GroupSettings):
    """The ranks that run in lockstep."""

    name: str = setting("decode-0", help="name of the group, unique in a cluster", flag="--group")


class DecodeEngine(EngineSection):
    """One engine; the rest follows from the model."""

    max_num_seqs: int = setting(32, help="sequences that hold memory at once", ge=1)
    max_num_batched_tokens: int = setting(64, help="rows of one step", ge=1)


class DecodeStore(StoreSection):
    """The shared KV store."""

    lease_s: float = setting(10.0, help="seconds a reader's lease lives unrenewed", gt=0)


class FetchSettings(Settings):
    """How KV comes out of the store, and who may come."""

    readers: int = setting(2, help="threads that talk to the store", ge=1)
    max_bytes_in_flight: int = setting(
        512 << 20, help="host bytes of KV of all sequences between store and engine", gt=0
    )
    max_waiting: int = setting(256, help="sequences that may wait for those bytes", ge=0)
    max_bytes_prefetched: int = setting(
        256 << 20, help="host bytes of KV read before their tickets", gt=0
    )
    credit_ttl_s: float = setting(60.0, help="seconds a reserved slot waits for its sequence", gt=0)


class DecodeSettings(EngineProcessSettings):
    """Everything a decode process can be told."""

    group: DecodeGroup = DecodeGroup()
    engine: DecodeEngine = DecodeEngine()
    store: DecodeStore
    fetch: FetchSettings = FetchSettings()
    events: EventsSettings = EventsSettings()
