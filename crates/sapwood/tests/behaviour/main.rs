//! What the store does while nothing goes wrong: answers, space, memory of the cache.

mod coming_from;
mod concurrent;
mod copy_on_write;
mod cursor;
mod emptied;
mod encryption;
mod expiry;
mod keyspaces;
mod len_estimate;
mod long_records;
mod model;
mod old_formats;
mod passing;
mod pending;
mod queues;
mod range_removals;
mod record_cache;
mod shrunken;
mod small_flush_memory;
mod space;
mod thread_end;
