//! Standard output and standard error, which may be closed or full: results that cannot be written are an error, messages
//! that cannot be written are not.

use crate::failure::{Failure, Result};
use std::io::{BufWriter, ErrorKind, Write, stderr, stdout};

/// Standard output for much.
pub(crate) fn buffered() -> impl Write {
    BufWriter::with_capacity(1 << 20, stdout().lock())
}

/// What a failed write to standard output means: a reader that has had enough is none of our business.
pub(crate) fn failed(error: std::io::Error) -> Failure {
    if error.kind() == ErrorKind::BrokenPipe {
        Failure::Closed
    } else {
        Failure::Other(format!("standard output: {error}"))
    }
}

/// Prints a line, or several, as a result.
pub(crate) fn print(text: impl std::fmt::Display) -> Result<()> {
    let mut output = stdout().lock();
    writeln!(output, "{text}").and_then(|()| output.flush()).map_err(failed)
}

/// What a command ends with that has told what it found. The exit code is an answer too, for whoever has read enough.
pub(crate) fn answered(told: Result<()>, answer: Result<()>) -> Result<()> {
    match told {
        Ok(()) | Err(Failure::Closed) => answer,
        failed => failed,
    }
}

/// Tells people something on standard error, if they listen.
pub(crate) fn tell(text: impl std::fmt::Display) {
    let _ = writeln!(stderr().lock(), "{text}");
}
