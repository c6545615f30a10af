//! The log through all that can happen to it.

mod damage;
mod faults;
mod lives;
mod reserved;
mod stored;
mod unbegun;

use psync::Simulated;

/// Changes the bytes of a file behind the log's back.
fn edit_file(volume: &Simulated, name: &str, edit: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = volume.read_file(name).unwrap_or_default();
    edit(&mut bytes);
    volume.write_file(name, &bytes).unwrap();
}
