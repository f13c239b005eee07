"""The leaderboard: records in, boards and pages out."""
