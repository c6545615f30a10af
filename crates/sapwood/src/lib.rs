//! Sapwood.
