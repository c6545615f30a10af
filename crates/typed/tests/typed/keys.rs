//! Keys of each type: their bytes are ordered as they are, none begins with another, they come back, and other bytes are refused.

use crate::types::{Berth, Pair, Place, berth, bytes, place, text};
use proptest::prelude::*;
use sapwood_typed::{AsKey, TypedKey, Verbatim, decode_key, encode_key};
use std::cmp::{Ordering, Reverse};
use std::fmt::Debug;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Two keys of a type: what must hold of their bytes.
fn holds<K: TypedKey + Debug>(a: &K, b: &K, order: Ordering)
where
    for<'a> &'a K: AsKey<K>,
{
    let (of_a, of_b) = (encode_key::<K>(a), encode_key::<K>(b));
    assert_eq!(of_a.cmp(&of_b), order, "{a:?} and {b:?} as {of_a:x?} and {of_b:x?}");
    if K::IS_PREFIX_FREE && order.is_ne() {
        assert!(!of_b.starts_with(&of_a), "{b:?} begins with {a:?}: {of_b:x?} and {of_a:x?}");
    }
    let back: K = decode_key(&of_a).unwrap();
    assert_eq!(encode_key::<K>(&back), of_a, "{a:?} came back as {back:?}");
    for end in 0..of_a.len() {
        if K::IS_PREFIX_FREE {
            assert!(decode_key::<K>(&of_a[..end]).is_err(), "{end} bytes of {of_a:x?}");
        }
    }
}

fn is_ordered<K: TypedKey + Ord + Debug>(a: &K, b: &K)
where
    for<'a> &'a K: AsKey<K>,
{
    holds(a, b, a.cmp(b));
    assert_eq!(&decode_key::<K>(&encode_key::<K>(a)).unwrap(), a);
}

/// Bytes that are decoded are those of what they were decoded to.
fn takes_any<K: TypedKey>(bytes: &[u8])
where
    for<'a> &'a K: AsKey<K>,
{
    if let Ok(key) = decode_key::<K>(bytes) {
        assert_eq!(encode_key::<K>(&key), bytes);
    }
}

macro_rules! ordered {
    ($($name:ident: $type:ty, $strategy:expr;)*) => {
        proptest! {$(
            #[test]
            fn $name(a in $strategy, b in $strategy, other in bytes()) {
                is_ordered::<$type>(&a, &b);
                is_ordered::<$type>(&a, &a.clone());
                takes_any::<$type>(&other);
            }
        )*}
    };
}

/// Numbers at the ends and around zero, and any.
macro_rules! number {
    ($type:ident) => {
        prop_oneof![
            Just($type::MIN),
            Just($type::MAX),
            Just($type::MIN + 1),
            Just(0 as $type),
            Just(1 as $type),
            any::<$type>()
        ]
    };
}

fn time() -> impl Strategy<Value = SystemTime> {
    (-3i64..3, prop_oneof![Just(0u32), Just(999_999_999), 0..1_000_000_000u32]).prop_map(
        |(seconds, nanos)| {
            let whole = Duration::from_secs(seconds.unsigned_abs());
            let second = if seconds < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH + whole };
            second + Duration::from_nanos(nanos.into())
        },
    )
}

fn duration() -> impl Strategy<Value = Duration> {
    (prop_oneof![0..3u64, any::<u64>()], prop_oneof![Just(0u32), 0..1_000_000_000u32])
        .prop_map(|(seconds, nanos)| Duration::new(seconds, nanos))
}

ordered! {
    of_u8: u8, number!(u8);
    of_u16: u16, number!(u16);
    of_u32: u32, number!(u32);
    of_u64: u64, number!(u64);
    of_u128: u128, number!(u128);
    of_usize: usize, number!(usize);
    of_i8: i8, number!(i8);
    of_i16: i16, number!(i16);
    of_i32: i32, number!(i32);
    of_i64: i64, number!(i64);
    of_i128: i128, number!(i128);
    of_isize: isize, number!(isize);
    of_bool: bool, any::<bool>();
    of_char: char, prop_oneof![Just('\0'), Just(char::MAX), Just('\u{d7ff}'), Just('\u{e000}'), any::<char>()];
    of_text: String, text();
    of_bytes: Vec<u8>, bytes();
    of_options: Option<Option<String>>, proptest::option::of(proptest::option::of(text()));
    of_lists: Vec<u16>, proptest::collection::vec(0u16..3, 0..4);
    of_lists_of_text: Vec<String>, proptest::collection::vec(text(), 0..3);
    of_lists_of_lists: Vec<Vec<Option<u8>>>, proptest::collection::vec(proptest::collection::vec(any::<Option<u8>>(), 0..3), 0..3);
    of_arrays: [String; 2], [text(), text()];
    of_bytes_of_known_number: [u8; 4], any::<[u8; 4]>();
    of_no_bytes_in_a_tuple: ([u8; 0], u8), (Just([0u8; 0]), any::<u8>());
    of_reversed: Reverse<u32>, (0u32..4).prop_map(Reverse);
    of_reversed_text: (Reverse<String>, u8), (text().prop_map(Reverse), any::<u8>());
    of_reversed_twice: Reverse<(Reverse<String>, Vec<u8>)>, (text().prop_map(Reverse), bytes()).prop_map(Reverse);
    of_times: SystemTime, time();
    of_durations: Duration, duration();
    of_one: (String,), (text(),);
    of_two: (String, u8), (text(), any::<u8>());
    of_three: (Vec<u8>, String, Vec<u8>), (bytes(), text(), bytes());
    of_nested: ((String, Option<String>), Vec<(String, bool)>, String),
        ((text(), proptest::option::of(text())), proptest::collection::vec((text(), any::<bool>()), 0..3), text());
    of_eight: (u8, i8, String, bool, Vec<u8>, Option<u8>, char, String),
        (0u8..2, -1i8..2, text(), any::<bool>(), bytes(), any::<Option<u8>>(), prop_oneof![Just('a'), Just('b')], text());
    of_structs: Berth, berth();
    of_structs_without_names: Pair, (-1i8..2, proptest::option::of(text())).prop_map(|(a, b)| Pair(a, b));
    of_enums: Place, place();
    of_enums_in_tuples: (Place, u8, Place), (place(), 0u8..2, place());
    of_verbatim_text: (u8, Verbatim<String>), (0u8..2, text().prop_map(Verbatim));
    of_verbatim_bytes: (String, Verbatim<Vec<u8>>), (text(), bytes().prop_map(Verbatim));
    of_dates: jiff::civil::Date, (prop_oneof![-9999i16..=9999, 1999i16..2001], 1i8..13, 1i8..29)
        .prop_map(|(year, month, day)| jiff::civil::date(year, month, day));
    of_timestamps: jiff::Timestamp, (prop_oneof![-2i64..2, -377_705_023_201..=253_402_207_200i64], 0i32..1_000_000_000)
        .prop_map(|(second, nanos)| jiff::Timestamp::new(second, 0).unwrap().checked_add(Duration::from_nanos(nanos as u64)).unwrap_or(jiff::Timestamp::MAX));
    of_uuids: uuid::Uuid, any::<u128>().prop_map(uuid::Uuid::from_u128);
}

fn f64s() -> impl Strategy<Value = f64> {
    let odd = [
        f64::NAN,
        -f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.0,
        -0.0,
        f64::MIN_POSITIVE,
        5e-324,
        -5e-324,
    ];
    prop_oneof![proptest::sample::select(odd.to_vec()), any::<u64>().prop_map(f64::from_bits), -2.0..2.0]
}

proptest! {
    #[test]
    fn of_floats(a in f64s(), b in f64s(), other in bytes()) {
        holds(&a, &b, a.total_cmp(&b));
        let (c, d) = (a as f32, b as f32);
        holds(&c, &d, c.total_cmp(&d));
        takes_any::<f64>(&other);
        takes_any::<(f32, f32)>(&other);
        let back: f64 = decode_key(&encode_key::<f64>(a)).unwrap();
        prop_assert_eq!(back.to_bits(), a.to_bits());
    }

    /// What stands for a key has its bytes.
    #[test]
    fn of_what_stands_for_it(text in text(), number: u32, bytes in bytes()) {
        let key = (number, text.clone(), bytes.clone());
        let expected = encode_key::<(u32, String, Vec<u8>)>(&key);
        prop_assert_eq!(&encode_key::<(u32, String, Vec<u8>)>((number, &text[..], &bytes[..])), &expected);
        prop_assert_eq!(&encode_key::<(u32, String, Vec<u8>)>((&number, &text, &bytes)), &expected);
        prop_assert_eq!(&encode_key::<(u32, String, Vec<u8>)>((number, std::borrow::Cow::from(text), bytes)), &expected);
    }
}
