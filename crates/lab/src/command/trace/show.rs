//! `sapwood-lab trace show`.

use crate::arguments::trace::Show;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::progress::print;
use crate::trace::Op;
use crate::trace::account::Account;
use crate::trace::source::Source;

pub(super) fn show(arguments: &Show) -> Result<()> {
    interrupt::watch();
    let mut account = Account::default();
    for (at, step) in (0_u64..).zip(Source::open(&arguments.file, arguments.format)?) {
        if at.is_multiple_of(1 << 16) && interrupt::pressed() {
            return Err(Failure::Interrupted);
        }
        account.add(step?);
    }
    print(table(&account))
}

/// Indexes by line, kinds of operations by column; then mix and hash.
fn table(account: &Account) -> String {
    let occurs = |op: &&Op| account.of(**op) > 0;
    let kinds: Vec<Op> = Op::ALL.iter().filter(occurs).copied().collect();
    let row = |name: &str, counts: Vec<String>, keys: &str| {
        let counts: String = counts.iter().map(|count| format!("{count:>12}")).collect();
        format!("{name:<6}{counts}  {keys}")
    };
    let mut lines = vec![row("index", kinds.iter().map(|op| op.name().to_owned()).collect(), "keys")];
    for (tree, (least, greatest)) in account.trees() {
        let counts = kinds.iter().map(|op| account.of_tree(tree, *op).to_string()).collect();
        lines.push(row(&tree.to_string(), counts, &format!("{least} to {greatest}")));
    }
    lines.push(row("all", kinds.iter().map(|op| account.of(*op).to_string()).collect(), ""));
    lines.push(format!("{} operations: {}", account.operations(), account.told(&[])));
    lines.push(format!("SHA-256 {}", account.sha256()));
    lines.join("\n").replace("  \n", "\n")
}
