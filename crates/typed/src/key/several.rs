//! Keys made of other keys: lists, arrays, options, reversed ones.

use super::reader::END;
use super::{AsKey, KeyError, KeyReader, TypedKey};
use std::cmp::Reverse;

/// Comes before each item of a list, and before what an option has.
const ITEM: u8 = 1;

pub(super) fn encode_list<K: TypedKey>(items: &[K], bytes: &mut Vec<u8>) {
    for item in items {
        bytes.push(ITEM);
        item.encode_key(bytes);
    }
    bytes.push(END);
}

/// Takes the byte that says whether there is another one.
fn has_next(bytes: &mut KeyReader<'_>) -> Result<bool, KeyError> {
    match bytes.byte()? {
        END => Ok(false),
        ITEM => Ok(true),
        _ => Err(KeyError::Invalid { what: "a list or an option goes on with 01 or ends with 00" }),
    }
}

pub(super) fn decode_list<K: TypedKey>(bytes: &mut KeyReader<'_>) -> Result<Vec<K>, KeyError> {
    let mut items = Vec::new();
    while has_next(bytes)? {
        items.push(K::decode_key(bytes)?);
    }
    Ok(items)
}

macro_rules! is_list {
    ($([$($generic:tt)*] $type:ty),*) => {$(
        impl<K: TypedKey, $($generic)*> AsKey<Vec<K>> for $type {
            fn encode_key(&self, bytes: &mut Vec<u8>) {
                K::encode_list(self, bytes);
            }
        }
    )*};
}

is_list! { [] [K], [] Vec<K>, [const N: usize] [K; N] }

impl<K: TypedKey> TypedKey for Vec<K> {
    const IS_PREFIX_FREE: bool = {
        assert!(K::IS_PREFIX_FREE, "`Verbatim` can only be the last part of a key");
        true
    };

    type Parts = Self;

    fn decode_key(bytes: &mut KeyReader<'_>) -> Result<Self, KeyError> {
        K::decode_list(bytes)
    }

    fn describe_key(words: &mut String) {
        K::describe_list(words);
    }
}

impl<K: TypedKey, A: AsKey<K>, const N: usize> AsKey<[K; N]> for [A; N] {
    fn encode_key(&self, bytes: &mut Vec<u8>) {
        self.iter().for_each(|item| item.encode_key(bytes));
    }
}

impl<K: TypedKey, const N: usize> TypedKey for [K; N] {
    const IS_PREFIX_FREE: bool = {
        assert!(K::IS_PREFIX_FREE, "`Verbatim` can only be the last part of a key");
        true
    };

    type Parts = Self;

    fn decode_key(bytes: &mut KeyReader<'_>) -> Result<Self, KeyError> {
        let items = (0..N).map(|_| K::decode_key(bytes)).collect::<Result<Vec<K>, KeyError>>()?;
        // There are N, since none was refused.
        items.try_into().map_err(|_| KeyError::Short { missing: 1 })
    }

    fn describe_key(words: &mut String) {
        words.push('[');
        K::describe_key(words);
        words.push_str("; ");
        words.push_str(&N.to_string());
        words.push(']');
    }
}

impl<K: TypedKey> AsKey<Option<K>> for Option<K> {
    fn encode_key(&self, bytes: &mut Vec<u8>) {
        match self {
            None => bytes.push(END),
            Some(value) => {
                bytes.push(ITEM);
                value.encode_key(bytes);
            }
        }
    }
}

impl<K: TypedKey> TypedKey for Option<K> {
    const IS_PREFIX_FREE: bool = K::IS_PREFIX_FREE;

    type Parts = Self;

    fn decode_key(bytes: &mut KeyReader<'_>) -> Result<Self, KeyError> {
        has_next(bytes)?.then(|| K::decode_key(bytes)).transpose()
    }

    fn describe_key(words: &mut String) {
        words.push_str("option ");
        K::describe_key(words);
    }
}

impl<K: TypedKey, A: AsKey<K>> AsKey<Reverse<K>> for Reverse<A> {
    fn encode_key(&self, bytes: &mut Vec<u8>) {
        let from = bytes.len();
        self.0.encode_key(bytes);
        bytes[from..].iter_mut().for_each(|byte| *byte = !*byte);
    }
}

impl<K: TypedKey> TypedKey for Reverse<K> {
    const IS_PREFIX_FREE: bool = {
        assert!(K::IS_PREFIX_FREE, "`Verbatim` cannot be reversed");
        true
    };

    type Parts = Self;

    fn decode_key(bytes: &mut KeyReader<'_>) -> Result<Self, KeyError> {
        bytes.flipped(K::decode_key).map(Reverse)
    }

    fn describe_key(words: &mut String) {
        words.push_str("reverse ");
        K::describe_key(words);
    }
}
