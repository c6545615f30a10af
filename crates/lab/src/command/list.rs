//! `sapwood-lab list`.

use crate::experiment::{Device, all};
use crate::failure::Result;
use crate::progress::print;

pub(super) fn list() -> Result<()> {
    for experiment in all() {
        let card = experiment.card();
        let devices: Vec<String> = Device::ALL
            .iter()
            .filter(|device| card.absence(**device).is_none())
            .map(Device::to_string)
            .collect();
        print(format_args!(
            "{:<4} {:<18} {}\n     {:<18} {}; on {}",
            card.id(),
            card.name,
            card.title,
            "",
            card.source,
            devices.join(", ")
        ))?;
    }
    Ok(())
}
