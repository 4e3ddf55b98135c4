"""Library over a shared Redis or Valkey: content-addressed KV blocks and proven hand-offs."""

from kvstore.config import KvStoreConfig
from kvstore.handoffs.leases import JanitorReport, LeaseRecord, LeaseState
from kvstore.handoffs.prefetched import Prefetched
from kvstore.handoffs.reader import FetchedState, HandoffReader
from kvstore.lookup import PrefixMatch
from kvstore.statistics import StoreStatistics
from kvstore.store import KvStore, open_store
from kvstore.ticket import HandoffDraft, Ticket, TokenChain

__all__ = [
    "FetchedState",
    "HandoffDraft",
    "HandoffReader",
    "JanitorReport",
    "KvStore",
    "KvStoreConfig",
    "LeaseRecord",
    "LeaseState",
    "Prefetched",
    "PrefixMatch",
    "StoreStatistics",
    "Ticket",
    "TokenChain",
    "open_store",
]
