//! The worker's memory allocator, the same for every store: jemalloc, for Rust and for C and C++.
//!
//! A store under a hard limit is killed by what its allocator keeps. glibc gives threads arenas of their own, and what is free
//! in one of them serves no other: RocksDB grew from 70 to 106 MiB with four readers, without a byte more in its caches, and
//! sixteen killed it. RocksDB's makers advise jemalloc.
//!
//! Invariant: what is free goes back to the system within half a second.

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

const CONF: &[u8; 69] = b"background_thread:true,narenas:4,dirty_decay_ms:500,muzzy_decay_ms:0\0";

/// What jemalloc reads when it begins.
// SAFETY: jemalloc declares this symbol as a pointer to a constant string that ends in a zero, which a reference to an array is.
#[unsafe(export_name = "malloc_conf")]
pub static MALLOC_CONF: &[u8; 69] = CONF;
