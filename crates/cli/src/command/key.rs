//! `sapwood key`: makes key files, and changes the key of an encrypted database.

use crate::arguments::{KeyChange, KeyNew};
use crate::command::Opening;
use crate::failure::Result;
use crate::output::print;
use sapwood::EncryptionKey;

pub(crate) fn new(options: &KeyNew) -> Result<()> {
    EncryptionKey::generate()?.save(&options.file)?;
    print(format_args!(
        "{}: a new key, which only you may read. Without it nothing can be read: keep a copy elsewhere",
        options.file.display()
    ))
}

pub(crate) fn change(options: &KeyChange, opening: Opening) -> Result<()> {
    let key = EncryptionKey::from_file(&options.to)?;
    let db = opening.to_write(&options.db, false)?;
    db.change_encryption_key(&key)?;
    db.close()?;
    print(format_args!(
        "{}: opens with the key in {} from now on, and with no other",
        options.db.display(),
        options.to.display()
    ))
}
