//! `sapwood completions` and `sapwood man`: what shells and `man` know of the program, made from the command line itself.

use crate::arguments::{Arguments, Completions, Man};
use crate::failure::{Failure, Result};
use crate::output::{failed, print, tell};
use clap::CommandFactory;
use std::io::Write;

pub(crate) fn completions(options: &Completions) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Arguments::command(), "sapwood", &mut script);
    let mut output = std::io::stdout().lock();
    output.write_all(&script).and_then(|()| output.flush()).map_err(failed)
}

pub(crate) fn man(options: &Man) -> Result<()> {
    let Some(dir) = &options.dir else {
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(Arguments::command()).render(&mut page);
        rendered.map_err(|error| Failure::Other(error.to_string()))?;
        return print(String::from_utf8_lossy(&page).trim_end());
    };
    let cannot = |error: std::io::Error| Failure::Other(format!("{}: {error}", dir.display()));
    std::fs::create_dir_all(dir).map_err(cannot)?;
    clap_mangen::generate_to(Arguments::command(), dir).map_err(cannot)?;
    tell(format_args!(
        "written to {}; read one with: man {}",
        dir.display(),
        dir.join("sapwood.1").display()
    ));
    Ok(())
}
