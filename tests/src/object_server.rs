//! A real S3 server process for tests: PyPI's `moto_server`, and a client that
//! shares nothing with the code under test.
//!
//! `scripts/test` installs the server and puts it on `PATH`. A missing server
//! fails the test; it is never skipped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Name of the program.
const SERVER: &str = "moto_server";

/// Where `scripts/lib.sh` makes its environment, below the cache folder.
const ENVIRONMENT: &str = "governed-ledger/python-server/bin";

/// What the server says once it listens.
const LISTENS: &str = "Running on http://";

/// What a signed request has.
const SIGNED: &str =
    "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";

/// Longest answer that is waited for.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running server with one bucket, gone with its value.
#[derive(Debug)]
pub struct ObjectServer {
    /// Where it listens.
    pub address: SocketAddr,
    bucket: String,
    child: Child,
}

/// What the server answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The body.
    pub body: Vec<u8>,
    /// Headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// Such as 200.
    pub status: u16,
}

impl Answer {
    /// Value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

fn program() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let installed = cache.map(|cache| cache.join(ENVIRONMENT).join(SERVER)).filter(|path| path.is_file());
    installed.unwrap_or_else(|| PathBuf::from(SERVER))
}

impl ObjectServer {
    /// Starts a server on a free port, with an empty bucket.
    ///
    /// # Panics
    /// When it is not installed or does not start.
    #[must_use]
    pub fn start(bucket: &str) -> Self {
        let mut command = Command::new(program());
        command.args(["-H", "127.0.0.1", "-p", "0"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                panic!("{SERVER}: {error}\nhint: scripts/test installs it; pip install 'moto[server]'")
            }
        };
        let mut said = BufReader::new(child.stderr.take().expect("its messages are piped"));
        let mut all = String::new();
        let address = loop {
            let mut line = String::new();
            let num_read = said.read_line(&mut line).expect("its messages are text");
            assert_ne!(num_read, 0, "{SERVER} ended before it listened: {all}");
            if let Some((_, address)) = line.split_once(LISTENS) {
                break address.trim().parse().expect("an address");
            }
            all.push_str(&line);
        };
        // A full pipe would stop it.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let server = Self { address, bucket: bucket.to_owned(), child };
        let made = server.request("PUT", "", b"");
        assert_eq!(made.status, 200, "the bucket was not made: {}", made.text());
        server
    }

    /// One request; `below` follows the bucket's name.
    ///
    /// # Panics
    /// When the server does not answer.
    #[must_use]
    pub fn request(&self, method: &str, below: &str, body: &[u8]) -> Answer {
        request(self.address, method, &format!("/{}{below}", self.bucket), body)
    }

    /// An object, or none.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        let answer = self.request("GET", &format!("/{key}"), b"");
        (answer.status == 200).then_some(answer.body)
    }

    /// The server's mark of an object's content; of one that came in parts it
    /// ends with their number.
    ///
    /// # Panics
    /// When there is no such object.
    #[must_use]
    pub fn mark(&self, key: &str) -> String {
        let answer = self.request("HEAD", &format!("/{key}"), b"");
        assert_eq!(answer.status, 200, "{key} is not there");
        answer.header("etag").expect("every object has a mark").trim_matches('"').to_owned()
    }

    /// Puts an object there, over another.
    ///
    /// # Panics
    /// When the server does not take it.
    pub fn put(&self, key: &str, bytes: &[u8]) {
        assert_eq!(self.request("PUT", &format!("/{key}"), bytes).status, 200, "{key}");
    }

    /// Keys of all objects, in order.
    ///
    /// # Panics
    /// When there are more than the server lists at once.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        let listing = self.request("GET", "?list-type=2", b"").text();
        assert!(listing.contains("<IsTruncated>false</IsTruncated>"), "{listing}");
        elements(&listing, "Key")
    }

    /// Keys of the uploads in parts that were begun and not finished.
    #[must_use]
    pub fn unfinished(&self) -> Vec<String> {
        elements(&self.request("GET", "?uploads=", b"").text(), "Key")
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Puts an object on a server, over another; for a thread that has no
/// [`ObjectServer`]. `target` begins with the bucket.
///
/// # Panics
/// When the server does not take it.
pub fn put(server: SocketAddr, target: &str, bytes: &[u8]) {
    assert_eq!(request(server, "PUT", target, bytes).status, 200, "{target}");
}

fn request(server: SocketAddr, method: &str, target: &str, body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(server).expect("the server listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout can be set");
    let num_bytes = body.len();
    // The server looks whether a request is signed, and not by whom.
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: {server}\r\nAuthorization: {SIGNED}\r\nContent-Length: {num_bytes}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).expect("it takes a request");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers and closes");
    parse(&answer)
}

fn parse(answer: &[u8]) -> Answer {
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("an answer has a head");
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|status| status.parse().ok());
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    Answer { body: answer[end + 4..].to_vec(), headers, status: status.expect("an answer has a status") }
}

/// Contents of all elements of a name.
fn elements(text: &str, name: &str) -> Vec<String> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    text.split(&open).skip(1).filter_map(|rest| rest.split(&close).next()).map(str::to_owned).collect()
}
