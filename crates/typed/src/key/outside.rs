//! Types of other crates as keys, each by a feature.

#[cfg(feature = "uuid")]
mod uuids {
    use crate::key::{AsKey, KeyError, KeyReader, TypedKey};
    use uuid::Uuid;

    impl AsKey<Uuid> for Uuid {
        fn encode_key(&self, bytes: &mut Vec<u8>) {
            bytes.extend_from_slice(self.as_bytes());
        }
    }

    impl TypedKey for Uuid {
        type Parts = Self;

        fn decode_key(bytes: &mut KeyReader<'_>) -> Result<Self, KeyError> {
            bytes.take().map(Uuid::from_bytes)
        }

        fn describe_key(words: &mut String) {
            words.push_str("uuid");
        }
    }
}

#[cfg(feature = "jiff")]
mod jiffs {
    use crate::key::times::{decode_nanos, encode_since_1970};
    use crate::key::{AsKey, KeyError, KeyReader, TypedKey};
    use jiff::Timestamp;
    use jiff::civil::Date;

    /// Nanoseconds of a second.
    const NANOS: i128 = 1_000_000_000;

    impl AsKey<Timestamp> for Timestamp {
        fn encode_key(&self, bytes: &mut Vec<u8>) {
            let nanos = self.as_nanosecond();
            // Both fit: a timestamp lies in the years -9999 to 9999.
            encode_since_1970(nanos.div_euclid(NANOS) as i64, nanos.rem_euclid(NANOS) as u32, bytes);
        }
    }

    impl TypedKey for Timestamp {
        type Parts = Self;

        fn decode_key(bytes: &mut KeyReader<'_>) -> Result<Self, KeyError> {
            let (seconds, nanos) = (i64::decode_key(bytes)?, decode_nanos(bytes)?);
            let nanos = i128::from(seconds) * NANOS + i128::from(nanos);
            let refused = KeyError::Invalid { what: "a timestamp lies in the years -9999 to 9999" };
            Timestamp::from_nanosecond(nanos).map_err(|_| refused)
        }

        fn describe_key(words: &mut String) {
            words.push_str("time");
        }
    }

    impl AsKey<Date> for Date {
        fn encode_key(&self, bytes: &mut Vec<u8>) {
            self.year().encode_key(bytes);
            // Both are positive.
            bytes.extend_from_slice(&[self.month() as u8, self.day() as u8]);
        }
    }

    impl TypedKey for Date {
        type Parts = Self;

        fn decode_key(bytes: &mut KeyReader<'_>) -> Result<Self, KeyError> {
            let year = i16::decode_key(bytes)?;
            let [month, day] = bytes.take()?.map(|byte| i8::try_from(byte).unwrap_or(0));
            Date::new(year, month, day).map_err(|_| KeyError::Invalid { what: "there is no such day" })
        }

        fn describe_key(words: &mut String) {
            words.push_str("date");
        }
    }
}
