//! Spans of `tracing` around what takes long: opening, commits, flushes, edits, checkpoints, collections. They are there with the
//! feature `spans` only: without it the macro is nothing, and its arguments are not computed.

/// Opens a span that lasts to the end of the block, of target `sapwood`: at level TRACE for what each commit does, at DEBUG for all else.
macro_rules! span {
    (commit, $name:literal $($fields:tt)*) => {
        #[cfg(feature = "spans")]
        let _span = tracing::trace_span!(target: "sapwood", $name $($fields)*).entered();
    };
    ($name:literal $($fields:tt)*) => {
        #[cfg(feature = "spans")]
        let _span = tracing::debug_span!(target: "sapwood", $name $($fields)*).entered();
    };
}

pub(crate) use span;
