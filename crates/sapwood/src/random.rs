//! Random numbers of the operating system. A generator of the process would give each forked child the numbers that its parent and
//! the other children get: two databases of one id, or a nonce that is used twice.

use psync::{Error, Result};
use rand::TryRngCore;
use rand::rngs::OsRng;

/// So many random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    OsRng.try_fill_bytes(&mut bytes).map_err(|error| no_random(std::io::Error::other(error)))?;
    Ok(bytes)
}

/// The system has none.
pub(crate) fn no_random(source: std::io::Error) -> Error {
    let file = "the system's random bytes".to_owned();
    Error::Io { operation: "read", file, offset: None, source }
}
