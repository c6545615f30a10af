//! Integers, floats, `bool` and `char` as keys.

use super::{AsKey, KeyError, KeyReader, TypedKey, text};

macro_rules! is_itself {
    ($($type:ty = $words:expr, $encode:expr, $decode:expr;)*) => {$(
        impl AsKey<$type> for $type {
            fn encode_key(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&$encode(*self));
            }
        }

        impl TypedKey for $type {
            type Parts = Self;

            fn decode_key(bytes: &mut KeyReader<'_>) -> Result<Self, KeyError> {
                $decode(bytes.take()?)
            }

            fn describe_key(words: &mut String) {
                words.push_str($words);
            }
        }
    )*};
}

macro_rules! unsigned {
    ($($type:ident)*) => {
        is_itself! {$(
            $type = stringify!($type), $type::to_be_bytes, |bytes| Ok($type::from_be_bytes(bytes));
        )*}
    };
}

macro_rules! signed {
    ($($type:ident)*) => {
        is_itself! {$(
            $type = stringify!($type),
            |number: $type| (number ^ $type::MIN).to_be_bytes(),
            |bytes| Ok($type::from_be_bytes(bytes) ^ $type::MIN);
        )*}
    };
}

unsigned! { u16 u32 u64 u128 }
signed! { i8 i16 i32 i64 i128 }

macro_rules! float {
    ($float:ident, $bits:ident) => {
        is_itself! {
            $float = stringify!($float),
            |number: $float| {
                let (bits, sign) = (number.to_bits(), 1 << ($bits::BITS - 1));
                (if bits & sign == 0 { bits ^ sign } else { !bits }).to_be_bytes()
            },
            |bytes| {
                let (bits, sign) = ($bits::from_be_bytes(bytes), 1 << ($bits::BITS - 1));
                Ok($float::from_bits(if bits & sign == 0 { !bits } else { bits ^ sign }))
            };
        }
    };
}

float!(f32, u32);
float!(f64, u64);

is_itself! {
    bool = "bool", |is: bool| [u8::from(is)], |[byte]: [u8; 1]| match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(KeyError::Invalid { what: "a bool is 0 or 1" }),
    };
    char = "char", |letter: char| {
        let [_, bytes @ ..] = u32::from(letter).to_be_bytes();
        bytes
    }, |[a, b, c]: [u8; 3]| {
        char::from_u32(u32::from_be_bytes([0, a, b, c])).ok_or(KeyError::Invalid { what: "there is no char of this number" })
    };
    usize = "u64", |number: usize| (number as u64).to_be_bytes(), |bytes| {
        usize::try_from(u64::from_be_bytes(bytes)).map_err(|_| KeyError::Invalid { what: TOO_LARGE })
    };
    isize = "i64", |number: isize| (number as i64 ^ i64::MIN).to_be_bytes(), |bytes| {
        isize::try_from(i64::from_be_bytes(bytes) ^ i64::MIN).map_err(|_| KeyError::Invalid { what: TOO_LARGE })
    };
}

const TOO_LARGE: &str = "the number is too large for this machine";

impl AsKey<u8> for u8 {
    fn encode_key(&self, bytes: &mut Vec<u8>) {
        bytes.push(*self);
    }
}

/// A list of bytes is a string of them.
impl TypedKey for u8 {
    type Parts = Self;

    fn decode_key(bytes: &mut KeyReader<'_>) -> Result<Self, KeyError> {
        bytes.byte()
    }

    fn describe_key(words: &mut String) {
        words.push_str("u8");
    }

    fn encode_list(items: &[u8], bytes: &mut Vec<u8>) {
        text::encode_string(items, bytes);
    }

    fn decode_list(bytes: &mut KeyReader<'_>) -> Result<Vec<u8>, KeyError> {
        bytes.escaped()
    }

    fn describe_list(words: &mut String) {
        words.push_str("bytes");
    }
}
