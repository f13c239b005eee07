"""The leaderboard's pages."""
