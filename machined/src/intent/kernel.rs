//! The config's settings for the running kernel.

use crate::config::MachineConfig;
use crate::kernel_settings::KernelSpec;

/// Returns the modules and the parameters, of /proc/sys and /sys.
pub fn kernel(config: &MachineConfig) -> KernelSpec {
    let parameters = config.sysctls.iter().chain(&config.sysfs);
    KernelSpec {
        parameters: parameters
            .map(|(parameter, value)| (parameter.clone(), value.clone()))
            .collect(),
        modules: config.kernel_modules.clone(),
    }
}
