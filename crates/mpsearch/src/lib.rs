//! MPSearch.
