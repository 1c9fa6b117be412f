//! Tests: fake_driver.
