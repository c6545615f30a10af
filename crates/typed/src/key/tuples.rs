//! Tuples as keys.

use super::{AsKey, KeyError, KeyReader, TypedKey};

macro_rules! tuple {
    ($(($key:ident $as_key:ident $index:tt))* ; $last:ident $as_last:ident $last_index:tt) => {
        impl<$($key: TypedKey, $as_key: AsKey<$key>,)* $last: TypedKey, $as_last: AsKey<$last>>
            AsKey<($($key,)* $last,)> for ($($as_key,)* $as_last,)
        {
            fn encode_key(&self, bytes: &mut Vec<u8>) {
                $(self.$index.encode_key(bytes);)*
                self.$last_index.encode_key(bytes);
            }
        }

        impl<$($key: TypedKey,)* $last: TypedKey> TypedKey for ($($key,)* $last,) {
            const IS_PREFIX_FREE: bool = {
                $(assert!($key::IS_PREFIX_FREE, "`Verbatim` can only be the last part of a key");)*
                $last::IS_PREFIX_FREE
            };

            type Parts = Self;

            fn decode_key(bytes: &mut KeyReader<'_>) -> Result<Self, KeyError> {
                Ok(($($key::decode_key(bytes)?,)* $last::decode_key(bytes)?,))
            }

            fn describe_key(words: &mut String) {
                words.push('(');
                $($key::describe_key(words); words.push_str(", ");)*
                $last::describe_key(words);
                words.push(')');
            }
        }
    };
}

tuple! { ; A P 0 }
tuple! { (A P 0); B Q 1 }
tuple! { (A P 0) (B Q 1); C R 2 }
tuple! { (A P 0) (B Q 1) (C R 2); D S 3 }
tuple! { (A P 0) (B Q 1) (C R 2) (D S 3); E T 4 }
tuple! { (A P 0) (B Q 1) (C R 2) (D S 3) (E T 4); F U 5 }
tuple! { (A P 0) (B Q 1) (C R 2) (D S 3) (E T 4) (F U 5); G V 6 }
tuple! { (A P 0) (B Q 1) (C R 2) (D S 3) (E T 4) (F U 5) (G V 6); H W 7 }
