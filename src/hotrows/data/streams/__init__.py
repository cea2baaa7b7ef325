"""Streams: events from a folder that grows, a pipe, Kafka or Redis, as batches to train on.

    trainer = Trainer(data, config, "runs/live")
    trainer.fit_stream("kafka://localhost:9092/clicks", StreamConfig(max_wait=0.2))

    with EventStream(open_source("folder:clicks", data.schema), Encoder.open(data.path), 1024) as events:
        for batch in events: ...     # a loop of your own, whose checkpoint has events.state

    source         events in one order, and the position behind them         `EventSource`, `open_source`
    joined source  impressions, and labels that come later                    `open_joined`
    event stream   a thread reads, decodes and cuts batches                   `EventStream`
    dead letters   malformed and late events, with position and reason        `DeadLetters`

Events are encoded as `predict` encodes rows, by the vocabularies of prepared data; of dynamic features
the keys are ids themselves. A `StreamState` says how far a stream was read: it is in every checkpoint, so
that after a kill each event is trained once.
"""

from typing import TYPE_CHECKING

from hotrows.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from hotrows.data.streams.alarms import Alarm
    from hotrows.data.streams.event_stream import CutBatch as CutBatch
    from hotrows.data.streams.event_stream import EventStream
    from hotrows.data.streams.events import RawEvents as RawEvents
    from hotrows.data.streams.events import table_events
    from hotrows.data.streams.joined_source import JoinedSource as JoinedSource
    from hotrows.data.streams.joined_source import open_joined as open_joined
    from hotrows.data.streams.line_log import DeadLetters as DeadLetters
    from hotrows.data.streams.settings import StreamConfig
    from hotrows.data.streams.source import EventSource, open_source
    from hotrows.data.streams.state import StreamState as StreamState

__all__ = ["Alarm", "EventSource", "EventStream", "StreamConfig", "open_source", "table_events"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "hotrows.data.streams.alarms": ["Alarm"],
        "hotrows.data.streams.line_log": ["DeadLetters"],
        "hotrows.data.streams.event_stream": ["CutBatch", "EventStream"],
        "hotrows.data.streams.events": ["RawEvents", "table_events"],
        "hotrows.data.streams.joined_source": ["JoinedSource", "open_joined"],
        "hotrows.data.streams.settings": ["StreamConfig"],
        "hotrows.data.streams.state": ["StreamState"],
        "hotrows.data.streams.source": ["EventSource", "open_source"],
    },
)
