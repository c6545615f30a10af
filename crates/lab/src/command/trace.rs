//! `sapwood-lab trace`.

mod make;
mod replay;
mod show;

use crate::arguments::trace::Trace;
use crate::failure::Result;

pub(super) fn trace(arguments: &Trace) -> Result<()> {
    match arguments {
        Trace::Make(arguments) => make::make(arguments),
        Trace::Show(arguments) => show::show(arguments),
        Trace::Run(arguments) => replay::replay(arguments),
    }
}
