//! What the system has refused.

use std::sync::Arc;

/// What the system has refused, and what goes on nevertheless. Its source is the system's error.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// use sapwood::Error;
///
/// match ships.insert("fram", "1892") {
///     Err(Error::DiskFull(refusal) | Error::Exhausted(refusal)) => eprintln!("{refusal}: nothing happened"),
///     inserted => inserted?,
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Refusal {
    pub(super) error: Arc<psync::Error>,
    pub(super) hint: &'static str,
}

impl Refusal {
    /// The same where there is no database yet.
    pub(super) fn of_none(self) -> Self {
        Self { hint: "there is no database yet: it begins anew", ..self }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.error, self.hint)
    }
}

impl std::error::Error for Refusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}
