//! Which uploads in parts were begun and neither finished nor given up. They
//! are no objects and in no listing, and stores charge for them.
//!
//! `object_store` has no call for this request, so it signs the address and
//! this module asks it (S3 API, `ListMultipartUploads`).

use std::time::Duration;

use object_store::path::Path;
use object_store::signer::{Method, SignedUrlOptions, Signer};
use serde::Deserialize;

use super::{Session, StoreError};

/// How long a signed address holds: one request.
const SIGNED_FOR: Duration = Duration::from_secs(300);

/// Pages that are read at most; each has up to 1000 uploads.
const MAX_PAGES: u32 = 100;

/// An upload that is not finished.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct OpenUpload {
    /// Its name.
    #[serde(rename = "UploadId")]
    pub id: String,
    /// Key of the object that it would make.
    #[serde(rename = "Key")]
    pub key: String,
}

#[derive(Debug, Deserialize)]
struct Page {
    #[serde(rename = "IsTruncated", default)]
    is_truncated: bool,
    #[serde(rename = "NextKeyMarker", default)]
    next_key: Option<String>,
    #[serde(rename = "NextUploadIdMarker", default)]
    next_id: Option<String>,
    #[serde(rename = "Upload", default)]
    uploads: Vec<OpenUpload>,
}

impl Session<'_> {
    /// Every unfinished upload below a key.
    ///
    /// # Errors
    /// [`StoreError`]. It is asked once a page and not again: what it is for can
    /// be left to the next attempt.
    pub async fn open_uploads(&self, below: &str) -> Result<Vec<OpenUpload>, StoreError> {
        let prefix = format!("{below}/");
        let mut found = Vec::new();
        let mut marker: Option<(String, String)> = None;
        for _ in 0..MAX_PAGES {
            let mut query =
                vec![("uploads".to_owned(), String::new()), ("prefix".to_owned(), prefix.clone())];
            if let Some((key, id)) = marker.take() {
                query.extend([("key-marker".to_owned(), key), ("upload-id-marker".to_owned(), id)]);
            }
            let page = self.page(below, query).await?;
            found.extend(page.uploads.into_iter().filter(|upload| upload.key.starts_with(&prefix)));
            match (page.is_truncated, page.next_key, page.next_id) {
                (true, Some(key), Some(id)) => marker = Some((key, id)),
                _ => break,
            }
        }
        Ok(found)
    }

    async fn page(&self, below: &str, query: Vec<(String, String)>) -> Result<Page, StoreError> {
        let refused = |reason: String| StoreError::Refused {
            action: "list the unfinished uploads of",
            reason: self.remote.settings.redact(&reason),
            url: self.remote.location.url(below),
        };
        let options = SignedUrlOptions::new().with_query(query);
        let bucket = Path::default();
        let url = self.remote.client.signed_url_opts(Method::GET, &bucket, SIGNED_FOR, &options);
        let url = url.await.map_err(|error| refused(error.to_string()))?;
        // The address holds a signature, so it is in no message.
        let without_url = |error: reqwest::Error| refused(error.without_url().to_string());
        let response = self.remote.http.get(url).send().await.map_err(without_url)?;
        let status = response.status();
        let text = response.text().await.map_err(without_url)?;
        if !status.is_success() {
            return Err(refused(format!("status {status}")));
        }
        parse(&text).map_err(refused)
    }
}

fn parse(text: &str) -> Result<Page, String> {
    quick_xml::de::from_str(text).map_err(|error| format!("its answer is not a list of uploads: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_as_the_interface_specifies_it() {
        let text = r#"<?xml version="1.0" encoding="UTF-8"?>
            <ListMultipartUploadsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
              <Bucket>b</Bucket><KeyMarker/><NextKeyMarker>run/b</NextKeyMarker>
              <NextUploadIdMarker>2</NextUploadIdMarker><IsTruncated>true</IsTruncated>
              <Upload><Key>run/a</Key><UploadId>1</UploadId><Owner><ID>x</ID></Owner></Upload>
              <Upload><Key>run/b</Key><UploadId>2</UploadId></Upload>
            </ListMultipartUploadsResult>"#;
        let page = parse(text).expect("a page");
        assert!(page.is_truncated);
        assert_eq!((page.next_key.as_deref(), page.next_id.as_deref()), (Some("run/b"), Some("2")));
        let upload = |key: &str, id: &str| OpenUpload { id: id.to_owned(), key: key.to_owned() };
        assert_eq!(page.uploads, [upload("run/a", "1"), upload("run/b", "2")]);
        let none = parse(
            "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>",
        );
        assert_eq!(none.expect("an empty page").uploads, []);
        assert!(parse("<html>busy</html").is_err());
    }
}
