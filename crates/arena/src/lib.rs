//! **The arena**: what a race of key-value stores consists of, without any store: the records, the workloads, the side that a
//! store shows ([`Engine`], [`Session`]), the hand that drives it ([`drive()`]), and the words that the program which holds the
//! race and the program which holds the store say to each other ([`Order`], [`Answer`], [`serve`]).
//!
//! Adapters to the stores are in `crates/peers`, outside this workspace; the race is held by `sapwood-lab arena`.

mod drive;
mod engine;
mod outcome;
mod permutation;
mod protocol;
mod records;
mod targets;
mod text;
mod workload;

pub use drive::{Limits, drive};
pub use engine::{Change, Codec, Disk, Engine, Failed, Level, Modify, Result, Session, Settings};
pub use outcome::{Latency, Outcome};
pub use permutation::Permutation;
pub use protocol::{Answer, Open, Order, serve};
pub use records::{Kind, Records};
pub use targets::Held;
pub use workload::{Start, Workload};
