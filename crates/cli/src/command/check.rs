//! `sapwood check`: reads everything and verifies it.

use crate::arguments::Check;
use crate::command::Opening;
use crate::failure::{Failure, Result, list_damage};
use crate::output::print;
use crate::progress::Progress;
use sapwood::Error;
use std::path::Path;

/// What was found, one place a line, and what can be done.
fn report(path: &Path, error: &Error) -> String {
    let (damage, left_out) = match error {
        Error::Damaged { damage, left_out } => (damage.as_slice(), *left_out),
        one => (std::slice::from_ref(one), 0),
    };
    let mut text = format!("{}: {} damaged place(s):", path.display(), damage.len() as u64 + left_out);
    list_damage(&mut text, damage, left_out);
    text.push_str(match error {
        Error::Damaged { .. } => {
            "\nNothing was changed. Restore the database from a backup, or make a new one of what can be read: `sapwood repair DB NEW`"
        }
        _ => "\nNothing was changed, and nothing else was checked. Restore the database from a backup, or make a new one of what can be read: `sapwood repair DB NEW`",
    });
    text
}

pub(crate) fn run(options: &Check, opening: Opening) -> Result<()> {
    super::refuse_file(&options.db)?;
    let progress = Progress::waiting("checking");
    // Damage that already keeps the database from opening is what a check is to find.
    let result = opening.builder().read_only(true).create(false).open(&options.db).and_then(|db| db.check());
    progress.finish();
    match result {
        Ok(checked) => print(format_args!("{}: {checked}", options.db.display())),
        Err(error) if error.is_damage() => Err(Failure::Damage(report(&options.db, &error))),
        Err(error) => Err(error.into()),
    }
}
