//! What the config asks of the running kernel.

use crate::config::MachineConfig;
use crate::kernel_settings::{KernelSpec, ModuleSpec};

/// Its modules, and parameters of both trees.
pub fn kernel(config: &MachineConfig) -> KernelSpec {
    let parameters = config.sysctls.iter().chain(&config.sysfs);
    let modules = config.kernel_modules.iter().map(|module| ModuleSpec {
        name: module.name.clone(),
        parameters: module.parameters.clone(),
    });
    KernelSpec {
        parameters: parameters
            .map(|(parameter, value)| (parameter.clone(), value.clone()))
            .collect(),
        modules: modules.collect(),
    }
}
