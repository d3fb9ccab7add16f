// The published versions, newest first. tools/publish_site.py writes them here when it lays a site beside others; alone, a
// site has no choice to offer.
const VERSIONS = [];
