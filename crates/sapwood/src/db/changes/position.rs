//! Positions in the change feed.

use crate::database_id::DatabaseId;
use crate::error::Error;
use crate::operation::SeqNo;
use std::fmt;
use std::str::FromStr;

/// A place in the history of a database: all that was committed up to a sequence number, and the events of keyspaces up to one.
/// It is valid for this database only, and for as long as what comes after it [is kept](crate::Builder::keep_changes): over crashes
/// and restarts, but not for one that was restored from a backup, whose history is another.
///
/// To be stored with what was made of the changes up to there, as text or as bytes.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::builder().keep_changes(1 << 20).open(dir.path().join("ships.db"))?;
/// use sapwood::ChangesPosition;
///
/// let position = db.oldest_change()?;
/// let text = position.to_string();
/// assert_eq!(text.parse::<ChangesPosition>()?, position);
/// assert_eq!(ChangesPosition::from_bytes(&position.to_bytes()), Some(position));
/// assert!("tomorrow".parse::<ChangesPosition>().is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChangesPosition {
    pub(super) database: DatabaseId,
    pub(super) seq: SeqNo,
    /// The number of the event that comes next.
    pub(super) event: u64,
}

impl ChangesPosition {
    /// The sequence number of the last operation before it: how many operations were committed since the database was created.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::builder().keep_changes(1 << 20).open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let (_, position) = db.snapshot_for_changes()?;
    /// assert_eq!(position.sequence(), 1);
    /// # Ok(()) }
    /// ```
    pub fn sequence(&self) -> u64 {
        self.seq
    }

    /// 32 bytes: the database's id, the sequence number, and the number of the next event of a keyspace, both little-endian.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::builder().keep_changes(1 << 20).open(dir.path().join("ships.db"))?;
    /// assert_eq!(db.oldest_change()?.to_bytes().len(), 32);
    /// # Ok(()) }
    /// ```
    pub fn to_bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self.database.0);
        bytes[16..24].copy_from_slice(&self.seq.to_le_bytes());
        bytes[24..].copy_from_slice(&self.event.to_le_bytes());
        bytes
    }

    /// The position of these bytes; `None` if they are not 32.
    ///
    /// ```
    /// assert!(sapwood::ChangesPosition::from_bytes(&[0; 31]).is_none());
    /// ```
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (database, rest) = bytes.split_first_chunk::<16>()?;
        let (seq, rest) = rest.split_first_chunk()?;
        let event = u64::from_le_bytes(rest.try_into().ok()?);
        Some(Self { database: DatabaseId(*database), seq: u64::from_le_bytes(*seq), event })
    }
}

impl fmt::Display for ChangesPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.database, self.seq, self.event)
    }
}

impl fmt::Debug for ChangesPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChangesPosition({self})")
    }
}

impl FromStr for ChangesPosition {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).ok_or_else(|| Error::BadPosition { text: text.chars().take(100).collect() })
    }
}

fn parse(text: &str) -> Option<ChangesPosition> {
    let mut parts = text.split('-');
    let (database, seq, event) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some()
        || database.len() != 32
        || !database.bytes().all(|byte| byte.is_ascii_hexdigit())
    {
        return None;
    }
    let database = DatabaseId(u128::from_str_radix(database, 16).ok()?.to_be_bytes());
    Some(ChangesPosition { database, seq: seq.parse().ok()?, event: event.parse().ok()? })
}
