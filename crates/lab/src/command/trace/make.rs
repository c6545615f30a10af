//! `sapwood-lab trace make`: writes a synthetic trace, with what it was made from above it and its mix and hash below.
//!
//! Invariant: a file is there whole or not at all.

use crate::arguments::trace::Make;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::progress::tell;
use crate::trace::account::Account;
use crate::trace::block_synthesis::{BlockOptions, REUSED};
use crate::trace::tpcc::{INDEXES, TARGET, Tpcc, TpccOptions};
use crate::trace::{Op, Step, plain};
use std::io::{self, BufWriter, Write};
use std::path::Path;

pub(super) fn make(arguments: &Make) -> Result<()> {
    interrupt::watch();
    match arguments {
        Make::Tpcc(arguments) => {
            let options = TpccOptions {
                warehouses: arguments.warehouses,
                operations: arguments.operations,
                clients: arguments.clients,
                seed: arguments.seed,
            };
            let tpcc = Tpcc::new(options).map_err(Failure::Usage)?;
            let indexes = INDEXES.iter().enumerate().map(|(tree, name)| format!("index {tree}: {name}"));
            let head: Vec<String> = std::iter::once(tpcc.describe()).chain(indexes).collect();
            write(&arguments.out, &head, &TARGET, tpcc.trace())
        }
        Make::Block(arguments) => {
            let options = BlockOptions {
                like: arguments.like,
                sequential: arguments.sequential.unwrap_or_else(|| arguments.like.sequential()),
                divisor: arguments.divisor,
                seed: arguments.seed,
                reused: REUSED,
            };
            let steps = options.steps().map_err(Failure::Usage)?;
            write(&arguments.out, &[options.describe()], &[], steps)
        }
    }
}

fn write(
    path: &Path,
    head: &[String],
    target: &[(Op, f64)],
    steps: impl Iterator<Item = Step>,
) -> Result<()> {
    let account = if path == Path::new("-") {
        let written = write_to(&mut BufWriter::new(io::stdout().lock()), head, target, steps);
        written.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::Closed,
            _ => Failure::Io(format!("standard output: {error}")),
        })?
    } else {
        let failed = |error| Failure::at("write", path, error);
        let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        let mut file = tempfile::Builder::new().prefix(".trace-").tempfile_in(parent).map_err(failed)?;
        let account = write_to(&mut BufWriter::with_capacity(1 << 16, &mut file), head, target, steps)
            .map_err(failed)?;
        if account.is_some() {
            file.as_file().sync_all().map_err(failed)?;
            file.persist(path).map_err(|error| failed(error.error))?;
        }
        account
    };
    let account = account.ok_or(Failure::Interrupted)?;
    tell(format_args!("{}\n{}\nSHA-256 {}", head[0], account.told(target), account.sha256()));
    Ok(())
}

/// What was written; `None` after Ctrl-C.
fn write_to(
    output: &mut impl Write,
    head: &[String],
    target: &[(Op, f64)],
    steps: impl Iterator<Item = Step>,
) -> io::Result<Option<Account>> {
    for line in head {
        writeln!(output, "# {line}")?;
    }
    let mut account = Account::default();
    for (at, step) in (0_u64..).zip(steps) {
        if at.is_multiple_of(1 << 16) && interrupt::pressed() {
            return Ok(None);
        }
        account.add(step);
        plain::write(output, step)?;
    }
    writeln!(output, "# mix: {}", account.told(target))?;
    writeln!(output, "# SHA-256 of the lines without comments: {}", account.sha256())?;
    output.flush()?;
    Ok(Some(account))
}
