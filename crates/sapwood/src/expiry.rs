//! Expiry: records that are there until a certain time. They are in keyspaces that were created for it, where each stored value
//! lies behind its stamp:
//!
//! ```text
//! stored value = stamp value       in a keyspace with expiry; in others the value alone
//! stamp        = 6 bytes, little-endian: the time at which the record expires, in milliseconds since 1970; 0: never
//! ```
//! Trees, queues and the log know nothing of stamps: whoever reads for a user leaves out what has expired, and background work
//! removes it.
//!
//! Invariants:
//! 1. An expired record is not there for any reader, whether or not it is still stored.
//! 2. Background work removes only what had expired at a time that the manifest has seen, so nothing that it took away could
//!    come to be alive again.

use crate::clock::{Clock, LAST};
use crate::error::{DATA, Error, Result};
use crate::merging::{Merging, OVERHEAD, whole};
use crate::value::Value;
use bytes::Buf;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes of a stamp, as the format has it.
pub(crate) const STAMP: usize = 6;
const _: () = assert!(LAST == (1 << (8 * STAMP)) - 1, "a stamp has room for all times");

/// When a record expires.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// use sapwood::{Expiry, KeyspaceOptions};
/// use std::time::{Duration, SystemTime};
///
/// let berths = db.keyspace_with("berths", KeyspaceOptions::new().expiring())?;
/// berths.insert_expiring("fram", "berth 7", Expiry::After(Duration::from_secs(3600)))?;
/// berths.insert_expiring("beagle", "berth 8", Expiry::At(SystemTime::UNIX_EPOCH))?; // long ago
/// berths.insert_expiring("museum ship", "berth 1", Expiry::Never)?;
/// assert!(berths.contains("fram")? && !berths.contains("beagle")?);
/// assert_eq!(berths.expiry("museum ship")?, Some(Expiry::Never));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// It stays.
    Never,
    /// So long from now on, to the millisecond.
    After(Duration),
    /// At this time, rounded up to the next millisecond. From then on the record is not there.
    At(SystemTime),
}

/// How long records of a keyspace with expiry live that are inserted without saying so, in milliseconds; 0: until they are
/// removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DefaultTtl(pub u64);

impl DefaultTtl {
    pub fn of(life: Option<Duration>) -> Self {
        Self(life.map_or(0, |life| up_to_millis(life).max(1)))
    }

    /// `None` if records do not expire by default.
    pub fn duration(self) -> Option<Duration> {
        (self.0 > 0).then(|| Duration::from_millis(self.0))
    }

    pub fn expiry(self) -> Expiry {
        self.duration().map_or(Expiry::Never, Expiry::After)
    }
}

/// Milliseconds, rounded up.
fn up_to_millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A record's stamp as a number; 0 if it never expires.
pub(crate) type Stamp = u64;

impl Expiry {
    /// The stamp of a record that is inserted now.
    pub(crate) fn stamp(self, now: u64) -> Stamp {
        let at = match self {
            Self::Never => return 0,
            Self::After(life) => now.saturating_add(up_to_millis(life)),
            Self::At(time) => time.duration_since(UNIX_EPOCH).map_or(1, up_to_millis),
        };
        if at > LAST { 0 } else { at.max(1) }
    }

    pub(crate) fn of(stamp: Stamp) -> Self {
        match stamp {
            0 => Self::Never,
            at => Self::At(UNIX_EPOCH + Duration::from_millis(at)),
        }
    }
}

/// The bytes of a stamp.
fn stamp_bytes(stamp: Stamp) -> [u8; STAMP] {
    let [a, b, c, d, e, f, ..] = stamp.to_le_bytes();
    [a, b, c, d, e, f]
}

/// The stamp and the value of a stored value; `None` if it is too short to have both.
pub(crate) fn split(stored: &[u8]) -> Option<(Stamp, &[u8])> {
    let ([a, b, c, d, e, f], value) = stored.split_first_chunk()?;
    Some((u64::from_le_bytes([*a, *b, *c, *d, *e, *f, 0, 0]), value))
}

/// The stamp of a stored value, if it expires.
pub(crate) fn expires_at(stored: &[u8]) -> Option<u64> {
    split(stored).map(|(stamp, _)| stamp).filter(|stamp| *stamp > 0)
}

/// Whether a stored value had expired by then.
pub(crate) fn is_expired(stored: &[u8], now: u64) -> bool {
    expires_at(stored).is_some_and(|at| at <= now)
}

/// How a keyspace's values are stored, for whoever reads and writes them for a user.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoredValues {
    /// Set if records expire.
    clock: Option<Arc<Clock>>,
    /// Set if operands are merged into values.
    merging: Option<Merging>,
    /// Set if what has not expired is read as it is stored.
    as_stored: bool,
}

impl StoredValues {
    pub fn new(expire: bool, clock: &Arc<Clock>, merging: Option<Merging>) -> Self {
        Self { clock: expire.then(|| Arc::clone(clock)), merging, as_stored: false }
    }

    /// For one who takes values as they are stored, without expired ones.
    pub fn as_stored(&self) -> Self {
        Self { clock: self.clock.clone(), merging: None, as_stored: true }
    }

    /// For one who asks for keys alone: what is stored matters only where it may have expired.
    pub fn of_keys(&self) -> Self {
        Self { clock: self.clock.clone(), merging: None, as_stored: false }
    }

    /// Whether values are stored as they are.
    #[inline]
    pub fn are_plain(&self) -> bool {
        self.clock.is_none() && self.merging.is_none()
    }

    pub fn clock(&self) -> Option<&Arc<Clock>> {
        self.clock.as_ref()
    }

    pub fn merging(&self) -> Option<&Merging> {
        self.merging.as_ref()
    }

    /// Bytes that a stored value takes beside the value, at most.
    pub fn overhead(&self) -> usize {
        match (&self.clock, &self.merging) {
            (_, Some(_)) => OVERHEAD,
            (Some(_), None) => STAMP,
            (None, None) => 0,
        }
    }

    /// What is stored for a value that is inserted: itself, or behind its stamp if it has one.
    pub fn stored<'v>(&self, stamp: Option<Stamp>, value: &'v [u8]) -> Cow<'v, [u8]> {
        match (stamp, &self.merging) {
            (_, Some(_)) => Cow::Owned(whole(value)),
            (Some(stamp), None) => Cow::Owned([&stamp_bytes(stamp), value].concat()),
            (None, None) => Cow::Borrowed(value),
        }
    }

    /// What a user sees of the stored value of a key; `None` if it has expired.
    #[inline]
    pub fn read(&self, key: &[u8], stored: Value) -> Result<Option<Value>> {
        self.read_found(key, Some(stored))
    }

    /// The same of what was found, if anything was.
    #[inline]
    pub fn read_found(&self, key: &[u8], stored: Option<Value>) -> Result<Option<Value>> {
        if self.are_plain() { Ok(stored) } else { self.unstamped(key, stored) }
    }

    /// The value behind the stamp. It takes over the reference of the stored one: the first clone of bytes from a vector allocates.
    #[inline(never)]
    fn unstamped(&self, key: &[u8], stored: Option<Value>) -> Result<Option<Value>> {
        let Some(Value(mut stored)) = stored else { return Ok(None) };
        let Some(value) = self.read_ref(key, &stored)? else { return Ok(None) };
        stored.advance(stored.len() - value.len());
        Ok(Some(Value(stored)))
    }

    /// Like [`read`](Self::read), borrowed.
    pub fn read_ref<'v>(&self, key: &[u8], stored: &'v [u8]) -> Result<Option<&'v [u8]>> {
        if let Some(merging) = &self.merging {
            return merging.read(key, stored).map(Some);
        }
        let Some(clock) = &self.clock else { return Ok(Some(stored)) };
        let (stamp, value) = split(stored).ok_or_else(|| no_stamp(stored))?;
        // Most live for long, or for ever: then the clock need not be asked.
        let value = if self.as_stored { stored } else { value };
        Ok((stamp == 0 || stamp > clock.now()).then_some(value))
    }

    /// When the record of this stored value expires; `None` if it has.
    pub fn expiry(&self, stored: &[u8]) -> Result<Option<Expiry>> {
        let Some(clock) = &self.clock else { return Ok(Some(Expiry::Never)) };
        let (stamp, _) = split(stored).ok_or_else(|| no_stamp(stored))?;
        Ok((stamp == 0 || stamp > clock.now()).then(|| Expiry::of(stamp)))
    }
}

fn no_stamp(stored: &[u8]) -> Error {
    let expected = format!("at least {STAMP} bytes");
    Error::corrupt(DATA, 0, "the value of a record that may expire has no stamp", expected, stored.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ClockSource;
    use proptest::prelude::*;

    fn at(millis: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(millis)
    }

    proptest! {
        #[test]
        fn stamps_round_trip(stamp in 0..=LAST, value in prop::collection::vec(any::<u8>(), 0..9)) {
            let stored = [&stamp_bytes(stamp)[..], &value].concat();
            prop_assert_eq!(split(&stored), Some((stamp, &value[..])));
            prop_assert_eq!(Expiry::of(stamp).stamp(77), stamp);
        }

        #[test]
        fn a_record_is_there_until_its_moment(now in 1u64..1000, life in 0u64..1000) {
            let stamp = Expiry::After(Duration::from_millis(life)).stamp(now);
            let stored = [&stamp_bytes(stamp)[..], b"v"].concat();
            for later in 0..1100 {
                let then = now + later;
                let clock = Arc::new(Clock::new(ClockSource(Arc::new(move || at(then))), 0));
                let values = StoredValues::new(true, &clock, None);
                prop_assert_eq!(values.read_ref(b"k", &stored).unwrap().is_some(), later < life);
                prop_assert_eq!(is_expired(&stored, then), later >= life);
                prop_assert_eq!(values.expiry(&stored).unwrap().is_some(), later < life);
            }
        }
    }

    #[test]
    fn times_at_the_ends_are_what_they_say() {
        assert_eq!(Expiry::At(UNIX_EPOCH - Duration::from_secs(9)).stamp(5), 1, "long ago");
        assert_eq!(Expiry::At(at(7) + Duration::from_nanos(1)).stamp(5), 8, "not before its time");
        assert_eq!(Expiry::After(Duration::MAX).stamp(5), 0, "never");
        assert_eq!(Expiry::At(at(LAST)).stamp(5), LAST);
        assert_eq!(Expiry::At(at(LAST + 1)).stamp(5), 0, "beyond what a stamp tells");
        assert_eq!(DefaultTtl::of(Some(Duration::ZERO)).expiry(), Expiry::After(Duration::from_millis(1)));
        assert_eq!(DefaultTtl::of(None).expiry(), Expiry::Never);
    }

    #[test]
    fn a_value_without_a_stamp_is_damage() {
        let clock = Arc::new(Clock::new(ClockSource::default(), 0));
        let short = Value::from("short");
        assert!(matches!(
            StoredValues::new(true, &clock, None).read(b"k", short.clone()),
            Err(Error::Corrupt { .. })
        ));
        assert_eq!(StoredValues::new(false, &clock, None).read(b"k", short.clone()).unwrap(), Some(short));
    }
}
