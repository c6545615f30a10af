//! `sapwood probe`: what the disk gives.

use crate::arguments::Probe;
use crate::failure::{Failure, Result};
use crate::file;
use crate::interrupt;
use crate::output::print;
use crate::progress::Progress;
use disk_profile::{Profile, ProfileOptions};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

/// Measures with a progress bar. Ends early after Ctrl-C.
pub(crate) fn measure(dir: &Path, options: &ProfileOptions) -> Result<Profile> {
    let mut progress: Option<Progress> = None;
    let mut step = |step: disk_profile::ProfileStep| {
        if interrupt::pressed() {
            // A measurement is broken off by a panic, on which it removes its file.
            resume_unwind(Box::new(()));
        }
        let progress = progress.get_or_insert_with(|| Progress::steps("probing", Some(step.total as u64)));
        progress.at(step.done as u64, step.what);
    };
    let measured = catch_unwind(AssertUnwindSafe(|| Profile::measure(dir, options, &mut step)));
    if let Some(progress) = progress {
        progress.finish();
    }
    interrupt::go_on()?;
    Ok(measured.unwrap_or_else(|panic| resume_unwind(panic))?)
}

pub(crate) fn run(options: &Probe) -> Result<()> {
    let is_printed = options.plot.as_deref() == Some(Path::new("-"));
    if is_printed && options.json {
        return Err(Failure::Usage("standard output is for one of both: --json, or --plot -".to_owned()));
    }
    interrupt::watch_leaving(
        "its file psync-profile.scratch may be there still, and the next probe removes it",
    );
    let profile = measure(&options.dir, &ProfileOptions::default())?;
    if let Some(path) = &options.plot {
        file::draw(path, &profile.to_svg()?)?;
        if is_printed {
            return Ok(());
        }
    }
    if options.json { print(profile.to_json()?) } else { print(profile) }
}
