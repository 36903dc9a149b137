//! What the config asks of the running kernel.

use crate::config::MachineConfig;
use crate::kernel_settings::KernelSpec;

/// Its modules, and parameters of both trees.
pub fn kernel(config: &MachineConfig) -> KernelSpec {
    let parameters = config.sysctls.iter().chain(&config.sysfs);
    KernelSpec {
        parameters: parameters
            .map(|(parameter, value)| (parameter.clone(), value.clone()))
            .collect(),
        modules: config.kernel_modules.clone(),
    }
}
