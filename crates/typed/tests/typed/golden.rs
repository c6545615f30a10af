//! The bytes of keys and values. They must not change: databases hold them.

use crate::types::{Berth, Pair, Place, Ship};
use sapwood_typed::{AsKey, Fixed, Raw, TypedKey, TypedValue, Verbatim, decode_key, encode_key};
use std::cmp::Reverse;
use std::time::{Duration, UNIX_EPOCH};

fn key<K: TypedKey>(key: K, expected: &[u8], words: &str)
where
    for<'a> &'a K: AsKey<K>,
{
    let bytes = encode_key::<K>(&key);
    assert_eq!(bytes, expected, "{words}");
    assert_eq!(encode_key::<K>(&decode_key::<K>(&bytes).unwrap()), expected, "{words}");
    let mut described = String::new();
    K::describe_key(&mut described);
    assert_eq!(described, words);
}

#[test]
fn of_keys() {
    key(7u8, &[7], "u8");
    key(258u16, &[1, 2], "u16");
    key(0x0102_0304u32, &[1, 2, 3, 4], "u32");
    key(1u64, &[0, 0, 0, 0, 0, 0, 0, 1], "u64");
    key(1usize, &[0, 0, 0, 0, 0, 0, 0, 1], "u64");
    key(1u128, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], "u128");
    key(-1i8, &[0x7f], "i8");
    key(1i16, &[0x80, 1], "i16");
    key(i32::MIN, &[0, 0, 0, 0], "i32");
    key(-2i64, &[0x7f, 255, 255, 255, 255, 255, 255, 254], "i64");
    key(0isize, &[0x80, 0, 0, 0, 0, 0, 0, 0], "i64");
    key(0i128, &[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "i128");
    key(1.5f32, &[0xbf, 0xc0, 0, 0], "f32");
    key(-1.5f64, &[0x40, 0x07, 255, 255, 255, 255, 255, 255], "f64");
    key(true, &[1], "bool");
    key('€', &[0, 0x20, 0xac], "char");
    key("a\0\u{1}\u{2}é".to_owned(), b"a\x01\x01\x01\x02\x02\xc3\xa9\0", "string");
    key(vec![0u8, 1, 2, 255], &[1, 1, 1, 2, 2, 255, 0], "bytes");
    key(Verbatim("a\0".to_owned()), b"a\0", "verbatim string");
    key(Verbatim(vec![0u8, 1]), &[0, 1], "verbatim bytes");
    key(None::<u8>, &[0], "option u8");
    key(Some("a".to_owned()), b"\x01a\0", "option string");
    key(vec![1u16, 2], &[1, 0, 1, 1, 0, 2, 0], "list u16");
    key([1u16, 2], &[0, 1, 0, 2], "[u16; 2]");
    key(Reverse("a".to_owned()), &[!b'a', 255], "reverse string");
    key(UNIX_EPOCH + Duration::new(1, 2), &[0x80, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2], "time");
    key(
        UNIX_EPOCH - Duration::from_nanos(1),
        &[0x7f, 255, 255, 255, 255, 255, 255, 255, 0x3b, 0x9a, 0xc9, 0xff],
        "time",
    );
    key(Duration::new(1, 2), &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2], "duration");
    key(("a".to_owned(), 1u8, true), b"a\0\x01\x01", "(string, u8, bool)");
    key(jiff::Timestamp::new(-1, 0).unwrap(), &[0x7f, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0], "time");
    key(jiff::civil::date(2026, 11, 26), &[0x87, 0xea, 11, 26], "date");
    key(uuid::Uuid::from_u128(1), &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], "uuid");
    key(Berth { harbour: "a".into(), number: 7 }, b"a\0\0\x07", "(string, u16)");
    key(Pair(0, None), &[0x80, 0], "(i8, option string)");
    let place = "enum 0 | 1((string, u16)) | 10(i32, i32) | 11(string, u8)";
    key(Place::AtSea, &[0], place);
    key(Place::Berth(Berth { harbour: "a".into(), number: 7 }), b"\x01a\0\0\x07", place);
    key(Place::Position { latitude: 0, longitude: 1 }, &[10, 0x80, 0, 0, 0, 0x80, 0, 0, 1], place);
    key(Place::Dock("a".into(), 1), b"\x0ba\0\x01", place);
}

fn value<V: TypedValue>(value: V, expected: &[u8], words: &str) {
    let encoded = |value: &V| {
        let mut bytes = b"before".to_vec();
        value.encode_value(&mut bytes).unwrap();
        bytes.split_off(6)
    };
    assert_eq!(encoded(&value), expected, "{words}");
    assert_eq!(encoded(&V::decode_value(&expected.into()).unwrap()), expected, "{words}");
    let mut described = String::new();
    V::describe_value(&mut described);
    assert_eq!(described, words);
}

#[test]
fn of_values() {
    value((), &[], "postcard unit");
    value(300u32, &[0xac, 2], "postcard u32");
    value("ab".to_owned(), b"\x02ab", "postcard string");
    let ship = Ship { built: 1892, owners: vec!["n".into()], tonnes: Some(1.5) };
    value(ship, b"\xe4\x0e\x01\x01n\x01\0\0\xc0\x3f", "postcard Ship{built,owners,tonnes}");
    value(Fixed::new(&[1u8, 2]), &[1, 2], "fixed 2 bytes");
    value(Raw::from("ab"), b"ab", "raw");
}
