//! `sapwood tour`.

use crate::arguments::Tour;
use crate::failure::Result;

pub(crate) fn run(_: &Tour) -> Result<()> {
    Ok(())
}
