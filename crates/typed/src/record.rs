//! Records of typed keyspaces from and to bytes, with errors that say where.

use crate::key::{self, TypedKey};
use crate::value::{self, TypedValue};
use sapwood::{Error, Key, Keyspace, Result, Value};

/// A record whose parts have types.
pub(crate) type Found<K, V> = Option<(K, V)>;

pub(crate) fn key_of<K: TypedKey>(keyspace: &Keyspace, bytes: &[u8]) -> Result<K> {
    key::decode_key(bytes).map_err(|error| Error::Decode {
        keyspace: keyspace.name().into(),
        key: bytes.into(),
        expected: format!("key {}", key::describe::<K>()),
        reason: error.to_string(),
    })
}

pub(crate) fn value_of<V: TypedValue>(keyspace: &Keyspace, key: &[u8], bytes: &Value) -> Result<V> {
    V::decode_value(bytes).map_err(|reason| Error::Decode {
        keyspace: keyspace.name().into(),
        key: key.into(),
        expected: format!("value {}", value::describe::<V>()),
        reason,
    })
}

/// The same of what was found, if anything was.
pub(crate) fn found<V: TypedValue>(
    keyspace: &Keyspace,
    key: &[u8],
    bytes: Option<Value>,
) -> Result<Option<V>> {
    bytes.map(|bytes| value_of(keyspace, key, &bytes)).transpose()
}

pub(crate) fn found_all<V: TypedValue>(
    keyspace: &Keyspace,
    keys: &[Vec<u8>],
    values: Vec<Option<Value>>,
) -> Result<Vec<Option<V>>> {
    keys.iter().zip(values).map(|(key, bytes)| found(keyspace, key, bytes)).collect()
}

pub(crate) fn record_of<K: TypedKey, V: TypedValue>(
    keyspace: &Keyspace,
    (key, value): (Key, Value),
) -> Result<(K, V)> {
    Ok((key_of(keyspace, &key)?, value_of(keyspace, &key, &value)?))
}

pub(crate) fn found_record<K: TypedKey, V: TypedValue>(
    keyspace: &Keyspace,
    record: Option<(Key, Value)>,
) -> Result<Found<K, V>> {
    record.map(|record| record_of(keyspace, record)).transpose()
}

pub(crate) fn bytes_of<V: TypedValue>(keyspace: &Keyspace, value: &V) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match value.encode_value(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(reason) => Err(Error::Encode {
            keyspace: keyspace.name().into(),
            expected: format!("value {}", value::describe::<V>()),
            reason,
        }),
    }
}
