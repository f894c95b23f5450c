/// Most bytes that opening the page may transfer with brotli, fonts included. Over plain HTTP from
/// another machine browsers accept only gzip, which is half as large again.
const MAX_WIRE_BYTES: u64 = 700_000;
/// Most bytes that opening the fleet page may transfer with brotli.
const MAX_FLEET_WIRE_BYTES: u64 = 150_000;
