//! `sapwood probe`: what the disk gives.

use crate::arguments::Probe;
use crate::failure::{Failure, Result};
use crate::output::{print, tell};
use crate::progress::Progress;
use psync::{Profile, ProfileOptions};
use std::path::Path;

/// Measures with a progress bar.
pub(crate) fn measure(dir: &Path, options: &ProfileOptions) -> Result<Profile> {
    let mut progress: Option<Progress> = None;
    let measured = Profile::measure(dir, options, &mut |step| {
        let progress = progress.get_or_insert_with(|| Progress::steps("probing", Some(step.total as u64)));
        progress.at(step.done as u64, step.what);
    });
    if let Some(progress) = progress {
        progress.finish();
    }
    Ok(measured?)
}

pub(crate) fn run(options: &Probe) -> Result<()> {
    let profile = measure(&options.dir, &ProfileOptions::default())?;
    if let Some(path) = &options.plot {
        let cannot = |error: std::io::Error| Failure::Other(format!("{}: {error}", path.display()));
        std::fs::write(path, profile.to_svg()?).map_err(cannot)?;
        tell(format_args!("drawn into {}", path.display()));
    }
    if options.json { print(profile.to_json()?) } else { print(profile) }
}
