//! Chromium without a screen, steered by WebDriver (<https://www.w3.org/TR/webdriver2/>) through Debian's chromedriver.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::followed_program::FollowedProgram;
use crate::http_client::http_1_1;
use crate::scratch::Scratch;

/// Limit on the start of a program, and on what a page is to show.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two looks at a page.
const LOOK: Duration = Duration::from_millis(200);

/// A screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Screen {
    /// A small phone, held upright.
    Phone,
    /// A laptop.
    Laptop,
}

impl Screen {
    /// Its width and height in CSS pixels.
    pub fn size(self) -> (u32, u32) {
        match self {
            Self::Phone => (360, 740),
            Self::Laptop => (1280, 800),
        }
    }
}

/// A browser with one page. Dropping it ends it.
#[derive(Debug)]
pub struct Browser {
    _driver: FollowedProgram,
    address: String,
    session: String,
    folder: PathBuf,
}

/// Whether a call failed because the page has replaced the element (WebDriver's error code).
fn is_replaced(error: &anyhow::Error) -> bool {
    error.to_string().contains("stale element reference")
}

impl Browser {
    /// Starts a browser with this screen. Screenshots go to the scratch folder.
    pub fn start(scratch: &Scratch, screen: Screen) -> Result<Self> {
        let mut command = Command::new("chromedriver");
        command.arg("--port=0");
        let mut driver = FollowedProgram::by(&mut command)?;
        let begins = |line: &str| line.contains("was started successfully on port ");
        let line = driver.wait_for("chromedriver", PATIENCE, begins)?;
        let port = line.trim_end_matches('.').rsplit(' ').next();
        let port: u16 = port.context("it names no port")?.parse()?;
        let address = format!("127.0.0.1:{port}");
        let profile = scratch.join(&format!("browser-{port}"));
        let answer = call(
            &address,
            "POST",
            "/session",
            &capabilities(screen, &profile),
        )?;
        let session = answer["sessionId"].as_str().context("no session")?;
        Ok(Self {
            _driver: driver,
            address,
            session: session.to_owned(),
            folder: scratch.path().to_owned(),
        })
    }

    fn call(&self, method: &str, what: &str, message: &Value) -> Result<Value> {
        let target = format!("/session/{}{what}", self.session);
        call(&self.address, method, &target, message)
    }

    /// Opens an address.
    pub fn open(&self, url: &str) -> Result<()> {
        self.call("POST", "/url", &json!({ "url": url }))?;
        Ok(())
    }

    /// Runs a script in the page; returns what it returns.
    pub fn run(&self, script: &str) -> Result<Value> {
        self.call(
            "POST",
            "/execute/sync",
            &json!({ "script": script, "args": [] }),
        )
    }

    /// Clicks on the element that a CSS selector finds, as a person does: it has to be visible. If the page replaces the element after it
    /// was found, nothing was clicked on, and the new one is found.
    pub fn click(&self, selector: &str) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.click_once(selector) {
                Err(error) if is_replaced(&error) && Instant::now() < until => {}
                clicked => return clicked,
            }
        }
    }

    fn click_once(&self, selector: &str) -> Result<()> {
        let find = json!({ "using": "css selector", "value": selector });
        let found = self.call("POST", "/element", &find)?;
        let element = found
            .as_object()
            .and_then(|it| it.values().next()?.as_str());
        let element = element.with_context(|| format!("{selector}: {found}"))?;
        self.call("POST", &format!("/element/{element}/click"), &json!({}))?;
        Ok(())
    }

    /// Waits until the page's text contains these words; returns the text.
    pub fn wait_for_text(&self, words: &str) -> Result<String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let text = self.run("return document.body.innerText")?;
            let text = text.as_str().unwrap_or_default();
            if text.contains(words) {
                return Ok(text.to_owned());
            }
            ensure!(
                Instant::now() < until,
                "the page does not say {words:?}, but {text:?}"
            );
            std::thread::sleep(LOOK);
        }
    }

    /// Keeps a picture of the page under this name.
    pub fn screenshot(&self, name: &str) -> Result<PathBuf> {
        let picture = self.call("GET", "/screenshot", &Value::Null)?;
        let bytes = BASE64_STANDARD.decode(picture.as_str().context("no picture")?)?;
        let file = self.folder.join(format!("{name}.png"));
        std::fs::write(&file, bytes)?;
        Ok(file)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends with its session; chromedriver alone would leave it running.
        let _ = self.call("DELETE", "", &Value::Null);
    }
}

fn capabilities(screen: Screen, profile: &Path) -> Value {
    let (width, height) = screen.size();
    let mut options = json!({ "args": [
        "--headless=new", "--disable-gpu", "--disable-dev-shm-usage",
        // Tests may run as root, for whom Chromium has no sandbox.
        "--no-sandbox",
        format!("--window-size={width},{height}"),
        format!("--user-data-dir={}", profile.display()),
    ]});
    if screen == Screen::Phone {
        options["mobileEmulation"] =
            json!({ "deviceMetrics": { "width": width, "height": height, "pixelRatio": 2 } });
    }
    json!({ "capabilities": { "alwaysMatch": { "browserName": "chrome", "goog:chromeOptions": options } } })
}

/// Makes a call of WebDriver; returns its value.
fn call(address: &str, method: &str, target: &str, message: &Value) -> Result<Value> {
    let body = match message {
        Value::Null => String::new(),
        message => message.to_string(),
    };
    let headers = [("content-type", "application/json")];
    let answer = http_1_1(address, method, target, &headers, body.as_bytes())?;
    let value: Value = serde_json::from_slice(&answer.body)?;
    ensure!(answer.status == 200, "{method} {target}: {value:#}");
    Ok(value["value"].clone())
}
