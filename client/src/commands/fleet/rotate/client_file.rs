//! The client configuration during a rotation.

use std::path::PathBuf;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use instar_base::whole_file;
use instar_client::{Failure, FailureKind};
use instar_pki::client_config::{ClientConfig, Context};

use super::record::Rotation;
use super::step::{Authority, Client, ClientChange};
use crate::cli::Global;
use crate::target;

/// One context of a client configuration.
pub(super) struct ClientFile {
    path: PathBuf,
    context: String,
}

impl ClientFile {
    /// The context that the command line chooses.
    pub(super) fn open(global: &Global) -> Result<Self, Failure> {
        let path = target::config_path(global)
            .ok_or_else(|| Failure::new(FailureKind::Usage, "there is no client configuration"))?;
        // A link stays one: the file behind it is replaced.
        let path = path
            .canonicalize()
            .map_err(|error| Failure::io(format!("cannot read {}", path.display()), error))?;
        let mut file = Self {
            path,
            context: String::new(),
        };
        file.context = match &global.context {
            Some(name) => name.clone(),
            None => file.read()?.context,
        };
        Ok(file)
    }

    /// The same file with another context.
    pub(super) fn with_context(self, context: &str) -> Self {
        Self {
            context: context.to_owned(),
            ..self
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.context
    }

    /// The file's text.
    pub(super) fn text(&self) -> Result<String, Failure> {
        std::fs::read_to_string(&self.path)
            .map_err(|error| Failure::io(format!("cannot read {}", self.path.display()), error))
    }

    fn read(&self) -> Result<ClientConfig, Failure> {
        ClientConfig::from_yaml(&self.text()?).map_err(|error| self.unusable().because(error))
    }

    fn unusable(&self) -> Failure {
        let what = format!("cannot use {}", self.path.display());
        Failure::new(FailureKind::Usage, what)
    }

    /// The context as it is now.
    pub(super) fn now(&self) -> Result<Context, Failure> {
        let config = self.read()?;
        let context = config.context(Some(&self.context));
        Ok(context
            .map_err(|error| self.unusable().because(error))?
            .clone())
    }

    /// The only authority that the context believes, PEM.
    pub(super) fn authority(&self) -> Result<String, Failure> {
        let pem = self.now()?.ca_pem();
        let pem = pem.map_err(|error| self.unusable().because(error))?;
        let pem = pem.ok_or_else(|| self.unusable().because("it names no authority"))?;
        match instar_pki::certificates_from_pem(&pem) {
            Ok(all) if all.len() == 1 => Ok(pem),
            Ok(all) => Err(self.unusable().because(format!(
                "it believes {} authorities: an earlier rotation has not ended; name its folder with --state",
                all.len()
            ))),
            Err(error) => Err(self.unusable().because(error)),
        }
    }

    /// The facts about the context: the authorities that it believes, and the authority of its certificate.
    pub(super) fn fact(&self, rotation: &Rotation) -> Result<Client, Failure> {
        let context = self.now()?;
        let pem = context
            .ca_pem()
            .map_err(|error| self.unusable().because(error))?;
        let shown = context
            .crt_pem()
            .map_err(|error| self.unusable().because(error))?;
        let all = instar_pki::certificates_from_pem(&pem.unwrap_or_default());
        let all = all.map_err(|error| self.unusable().because(error))?;
        let has = |pem: &str| {
            instar_pki::certificate_from_pem(pem)
                .is_ok_and(|it| all.iter().any(|other| other.as_ref() == it.as_slice()))
        };
        let client = Client {
            trusts_old: has(&rotation.old),
            trusts_new: has(&rotation.new.crt),
            shows: match shown.as_deref() == Some(&rotation.client.crt) {
                true => Authority::New,
                false => Authority::Old,
            },
        };
        match client.trusts_old || client.trusts_new {
            true => Ok(client),
            false => Err(self
                .unusable()
                .because("it believes neither the authority that is replaced nor the new one")),
        }
    }

    /// Changes the context; the file is replaced whole.
    pub(super) fn change(&self, rotation: &Rotation, change: ClientChange) -> Result<(), Failure> {
        let mut config = self.read()?;
        let context = config.contexts.get_mut(&self.context);
        let context = context.ok_or_else(|| self.unusable())?;
        let encoded = |text: &str| Some(BASE64_STANDARD.encode(text));
        match change {
            ClientChange::TrustBoth => {
                let both = format!("{}\n{}", rotation.old.trim_end(), rotation.new.crt);
                context.ca = encoded(&both);
            }
            ClientChange::ShowNew => {
                context.crt = encoded(&rotation.client.crt);
                context.key = encoded(&rotation.client.key);
            }
            ClientChange::TrustNewAlone => context.ca = encoded(&rotation.new.crt),
        }
        let text = config
            .to_yaml()
            .map_err(|error| self.unusable().because(error))?;
        // On the disk before a node changes: the file must not fall behind the nodes when the power is cut.
        whole_file::replace(&self.path, 0o600, text.as_bytes())
            .map_err(|error| Failure::io(format!("cannot write {}", self.path.display()), error))
    }
}
