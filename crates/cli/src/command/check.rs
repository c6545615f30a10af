//! `sapwood check`: reads everything and verifies it.

use crate::arguments::Check;
use crate::failure::{Failure, Result};
use crate::progress::Progress;

pub(crate) fn run(options: &Check, memory: u64) -> Result<()> {
    let progress = Progress::steps("checking", None);
    // Damage that already keeps the database from opening is what a check is to find.
    let result = super::open_to_read(&options.db, memory).and_then(|db| Ok(db.check()?)).map_err(|failure| {
        match failure {
            Failure::Other(text) if text.contains("is damaged at byte") => Failure::Damage(text),
            other => other,
        }
    });
    progress.finish();
    println!("{}: {}", options.db.display(), result?);
    Ok(())
}
