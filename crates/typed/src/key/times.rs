//! Times as keys.

use super::{AsKey, KeyError, KeyReader, TypedKey};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NANOS: u32 = 1_000_000_000;
const TOO_FAR: KeyError = KeyError::Invalid { what: "the time is beyond what this machine can tell" };

/// Seconds since 1970, and nanoseconds since these.
pub(super) fn encode_since_1970(seconds: i64, nanos: u32, bytes: &mut Vec<u8>) {
    seconds.encode_key(bytes);
    nanos.encode_key(bytes);
}

pub(super) fn decode_nanos(bytes: &mut KeyReader<'_>) -> Result<u32, KeyError> {
    let nanos = u32::decode_key(bytes)?;
    let invalid = KeyError::Invalid { what: "a second has 1,000,000,000 nanoseconds" };
    if nanos < NANOS { Ok(nanos) } else { Err(invalid) }
}

impl AsKey<SystemTime> for SystemTime {
    fn encode_key(&self, bytes: &mut Vec<u8>) {
        let (seconds, nanos) = match self.duration_since(UNIX_EPOCH) {
            Ok(since) => (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()),
            Err(before) => {
                let before = before.duration();
                let (seconds, nanos) =
                    (0i64.saturating_sub_unsigned(before.as_secs()), before.subsec_nanos());
                if nanos == 0 { (seconds, 0) } else { (seconds.saturating_sub(1), NANOS - nanos) }
            }
        };
        encode_since_1970(seconds, nanos, bytes);
    }
}

impl TypedKey for SystemTime {
    type Parts = Self;

    fn decode_key(bytes: &mut KeyReader<'_>) -> Result<Self, KeyError> {
        let (seconds, nanos) = (i64::decode_key(bytes)?, decode_nanos(bytes)?);
        let whole = Duration::from_secs(seconds.unsigned_abs());
        let second = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
        second.and_then(|second| second.checked_add(Duration::from_nanos(nanos.into()))).ok_or(TOO_FAR)
    }

    fn describe_key(words: &mut String) {
        words.push_str("time");
    }
}

impl AsKey<Duration> for Duration {
    fn encode_key(&self, bytes: &mut Vec<u8>) {
        self.as_secs().encode_key(bytes);
        self.subsec_nanos().encode_key(bytes);
    }
}

impl TypedKey for Duration {
    type Parts = Self;

    fn decode_key(bytes: &mut KeyReader<'_>) -> Result<Self, KeyError> {
        Ok(Duration::new(u64::decode_key(bytes)?, decode_nanos(bytes)?))
    }

    fn describe_key(words: &mut String) {
        words.push_str("duration");
    }
}
