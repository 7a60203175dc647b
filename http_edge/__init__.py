"""How does a service of ours meet strangers: their connections, their browsers, what they send?

Nothing here knows what a service is for. `listening.py` takes connections, `browsers.py` refuses what
somebody else's page has a browser do, `bodies.py` reads what is sent within bounds, `sealed_page.py` sends a
page that can do nothing but what it does, `kept_answer.py` makes an answer once for all who ask for it.
"""
