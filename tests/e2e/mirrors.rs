//! A machine that serves its images to another one, which has no registry: with TLS, by the certificate of its API. The rules of both want a
//! signature, which the first one serves as well.

use anyhow::{Result, ensure};
use instar_tests::{
    Cosign, GREETER, GREETER_PORT, Greeter, HOST_FOR_GUEST, ImageUnderTest, Instarctl,
    MachineConfig, Node, Outcome, Registry, Said, Scratch, Test, chapters, push_greeter_edition,
    tests,
};

use crate::PATIENCE;

/// The port of the first machine's own registry.
const SERVED_PORT: u16 = 5055;

pub(crate) fn tests() -> Vec<Test> {
    tests![a_machine_is_the_mirror_of_another_one]
}

/// The machine that has the image, and the registry that it has it from.
struct Story {
    node: Node,
    client: Instarctl,
    registry: Registry,
    /// The document with the rule of both machines.
    rules: String,
    scratch: Scratch,
}

async fn a_machine_is_the_mirror_of_another_one(scratch: Scratch) -> Outcome {
    let story = Story::begin(&scratch).await?;
    chapters![
        it_serves_with_the_certificate_of_its_api(&story),
        another_machine_runs_the_image_by_it(&story),
    ]
    .await
}

async fn serving_node(scratch: &Scratch, host: String, rules: String) -> Result<Node> {
    let plan = Node::plan(scratch, &ImageUnderTest::first()?).blank_disk()?;
    plan.forward(SERVED_PORT)
        .configure(move |config| {
            let config = config.install_disk("/dev/vda").registry(&host);
            config.extra_name(HOST_FOR_GUEST).document(&rules)
        })
        .boot_until_ready(PATIENCE)
        .await
}

impl Story {
    async fn begin(scratch: &Scratch) -> Result<Self> {
        let registry = Registry::start(scratch)?;
        push_greeter_edition(&registry, "one")?;
        let owner = Cosign::new(scratch, "owner")?;
        owner.sign(&registry, "greeter:v1")?;
        let (host, rules) = (registry.host_for_guest(), wants(&owner.public_key()?));
        let node = serving_node(scratch, host, rules.clone()).await?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            node,
            registry,
            rules,
            scratch: scratch.clone(),
        })
    }

    async fn run(&self, words: &[&str]) -> Result<Said> {
        let said = self.client.run(words).await?;
        ensure!(said.code == Some(0), "{words:?}: {said:?}");
        Ok(said)
    }
}

/// A rule that wants a signature by this key for each image.
fn wants(key: &str) -> String {
    let key = key.trim_end().replace('\n', "\n        ");
    format!(
        "apiVersion: v1alpha1\nkind: ImageVerificationConfig\nrules:\n  - image: \"*\"\n    publicKey:\n      certificate: |\n        {key}\n"
    )
}

/// From then on the registry takes connections and says nothing.
async fn it_serves_with_the_certificate_of_its_api(story: &Story) -> Outcome {
    let image = story.registry.image_for_guest("greeter:v1");
    story.run(&["image", "pull", &image]).await?;
    story.registry.freeze()?;
    let listen = format!("0.0.0.0:{SERVED_PORT}");
    let words = ["image", "serve", "--listen", &listen, "--tls", "--images"];
    let said = story.run(&[&words[..], &[&image]].concat()).await?;
    ensure!(said.output.contains("https://0.0.0.0:5055"), "{said:?}");
    Ok(())
}

impl Story {
    /// The config of a machine that asks the first one instead of the registry.
    fn second_config(&self) -> Result<(MachineConfig, instar_tests::Identity)> {
        let identity = self.node.identity().with_role(instar_pki::Role::Admin)?;
        let served = self.node.guest_port(SERVED_PORT)?;
        let mirror = served.replace("127.0.0.1", HOST_FOR_GUEST);
        let host = self.registry.host_for_guest();
        let mirrored = format!(
            "apiVersion: v1alpha1\nkind: RegistryMirrorConfig\nname: {host}\nendpoints:\n  - url: https://{mirror}\nskipFallback: true\n"
        );
        let config = MachineConfig::new(&identity).hostname("second");
        let config = config.document(&mirrored).document(&self.rules);
        let config = config.greeter(&host);
        let config = config.registry_authority(&mirror, &identity.authority_certificate());
        Ok((config, identity))
    }
}

async fn another_machine_runs_the_image_by_it(story: &Story) -> Outcome {
    let scratch = story.scratch.below("second")?;
    let (config, identity) = story.second_config()?;
    let plan = Node::plan(&scratch, &ImageUnderTest::first()?).forward(GREETER_PORT);
    let node = plan.config(config.to_yaml(), identity).boot().await?;
    node.wait_until_ready(PATIENCE).await?;
    let runs = Greeter::of(&node)?.get("/read/edition")?;
    ensure!(runs == "one", "{GREETER} is {runs}");
    it_says_what_it_served(story).await
}

/// Its figures are shown every few seconds.
async fn it_says_what_it_served(story: &Story) -> Outcome {
    let served = async || {
        let shown = story.run(&["get", "registries", "-o", "yaml"]).await?;
        ensure!(shown.output.contains("tls: true"), "{shown:?}");
        ensure!(!shown.output.contains("bytes: 0\n"), "{shown:?}");
        Ok(())
    };
    let node = &story.node;
    node.wait_until("it says what it served", PATIENCE, served)
        .await
}
