//! What serde says of a type: its name, and the names of its fields or variants.
//!
//! A type is asked to deserialize itself, which first says what it wants; that is noted, and refused. Lists, options and maps are asked
//! further for what they hold. No value of the type is made, and what it wants depends on the type alone.

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, Visitor};
use std::fmt::Write;

/// How many lists, options and maps within one another are described: types that are written by hand could go on for ever.
const DEPTH_MAX: usize = 16;

/// Appends a description of a type.
pub(super) fn describe<T: DeserializeOwned>(words: &mut String) {
    // It is always refused; what matters is what was noted before.
    let _ = T::deserialize(Probe { words, depth: 0 });
}

/// Whether a description is of a type that takes whatever comes, or of what holds such. Names in it may have any words.
pub(crate) fn is_any(mut words: &str) -> bool {
    while let Some(inner) = ["option ", "list ", "map of "].iter().find_map(|outer| words.strip_prefix(outer))
    {
        words = inner;
    }
    words == "any"
}

/// Notes what a type wants, and refuses it.
struct Probe<'w> {
    words: &'w mut String,
    depth: usize,
}

type Refused = serde::de::value::Error;

fn noted<T>() -> Result<T, Refused> {
    Err(Refused::custom("its shape was noted"))
}

impl Probe<'_> {
    fn note<T>(self, words: &str) -> Result<T, Refused> {
        self.words.push_str(words);
        noted()
    }

    fn note_names<T>(self, name: &str, names: &[&str]) -> Result<T, Refused> {
        // A string takes whatever is written to it.
        let _ = write!(self.words, "{name}{{{}}}", names.join(","));
        noted()
    }
}

/// The one item of a list or map.
struct One<'w>(Option<Probe<'w>>);

impl<'w, 'de> serde::de::SeqAccess<'de> for One<'w> {
    type Error = Refused;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Refused> {
        self.0.take().map(|probe| seed.deserialize(probe)).transpose()
    }
}

impl<'w, 'de> serde::de::MapAccess<'de> for One<'w> {
    type Error = Refused;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Refused> {
        self.0.take().map(|probe| seed.deserialize(probe)).transpose()
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Refused> {
        // Not reached: the key was refused.
        seed.deserialize(().into_deserializer())
    }
}

macro_rules! simple {
    ($($method:ident $words:literal)*) => {$(
        fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Refused> {
            self.note($words)
        }
    )*};
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Refused;

    simple! {
        deserialize_any "any"
        deserialize_bool "bool"
        deserialize_i8 "i8"
        deserialize_i16 "i16"
        deserialize_i32 "i32"
        deserialize_i64 "i64"
        deserialize_i128 "i128"
        deserialize_u8 "u8"
        deserialize_u16 "u16"
        deserialize_u32 "u32"
        deserialize_u64 "u64"
        deserialize_u128 "u128"
        deserialize_f32 "f32"
        deserialize_f64 "f64"
        deserialize_char "char"
        deserialize_str "string"
        deserialize_string "string"
        deserialize_bytes "bytes"
        deserialize_byte_buf "bytes"
        deserialize_unit "unit"
        deserialize_identifier "identifier"
        deserialize_ignored_any "ignored"
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.words.push_str("option ");
        if self.depth == DEPTH_MAX {
            return noted();
        }
        visitor.visit_some(Probe { words: self.words, depth: self.depth + 1 })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.words.push_str("list ");
        if self.depth == DEPTH_MAX {
            return noted();
        }
        visitor.visit_seq(One(Some(Probe { words: self.words, depth: self.depth + 1 })))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.words.push_str("map of ");
        if self.depth == DEPTH_MAX {
            return noted();
        }
        visitor.visit_map(One(Some(Probe { words: self.words, depth: self.depth + 1 })))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, _: V) -> Result<V::Value, Refused> {
        self.note(&format!("tuple of {len}"))
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, name: &'static str, _: V) -> Result<V::Value, Refused> {
        self.note_names(name, &[])
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: V,
    ) -> Result<V::Value, Refused> {
        self.note(&format!("{name}(1)"))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        _: V,
    ) -> Result<V::Value, Refused> {
        self.note(&format!("{name}({len})"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Refused> {
        self.note_names(name, fields)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Refused> {
        self.note_names(name, variants)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    fn shape<T: DeserializeOwned>() -> String {
        let mut words = String::new();
        describe::<T>(&mut words);
        words
    }

    #[expect(dead_code, reason = "only their shape matters")]
    mod types {
        use super::*;

        #[derive(Deserialize)]
        pub struct Ship {
            name: String,
            #[serde(rename = "year")]
            built: u16,
            sister: Option<Box<Ship>>,
        }

        #[derive(Deserialize)]
        pub enum Rig {
            Sloop,
            Ship { masts: u8 },
        }

        #[derive(Deserialize)]
        pub struct Tonnes(u32);

        #[derive(Deserialize)]
        pub struct Fleet(Vec<Fleet>);

        #[derive(Deserialize)]
        pub struct Unit;

        #[derive(Deserialize)]
        pub struct Pair(u8, u16);
    }

    #[test]
    fn types_say_what_they_are() {
        use types::*;
        assert_eq!(shape::<Ship>(), "Ship{name,year,sister}");
        assert_eq!(shape::<Rig>(), "Rig{Sloop,Ship}");
        assert_eq!(shape::<Vec<Option<Rig>>>(), "list option Rig{Sloop,Ship}");
        assert_eq!(shape::<BTreeMap<String, Ship>>(), "map of string");
        assert_eq!(shape::<(Tonnes, u8)>(), "tuple of 2");
        assert_eq!([shape::<Tonnes>(), shape::<Fleet>()], ["Tonnes(1)", "Fleet(1)"]);
        assert_eq!([shape::<Unit>(), shape::<Pair>(), shape::<()>()], ["Unit{}", "Pair(2)", "unit"]);
        assert_eq!([shape::<u64>(), shape::<String>(), shape::<[u8; 4]>()], ["u64", "string", "tuple of 4"]);
    }
}
